#include "tests/kernels/device/cuda_waits.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <utility>

namespace {

std::atomic<int64_t> waits = 0;
// This thread's last call was a copy to the host: LibTorch waits for the stream behind each, which is the
// same wait.
thread_local bool copied_to_host = false;

template <class Function>
Function* runtime(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// A program's own symbols take precedence over those of its libraries, for LibTorch as for our kernels: these
// functions replace the runtime's.
#define MOELAB_COUNTED __attribute__((visibility("default"))) cudaError_t CUDARTAPI
extern "C" {

MOELAB_COUNTED cudaDeviceSynchronize() {
  static const auto real = runtime<decltype(cudaDeviceSynchronize)>("cudaDeviceSynchronize");
  ++waits;
  return real();
}

MOELAB_COUNTED cudaStreamSynchronize(cudaStream_t stream) {
  static const auto real = runtime<decltype(cudaStreamSynchronize)>("cudaStreamSynchronize");
  if (!std::exchange(copied_to_host, false)) ++waits;
  return real(stream);
}

MOELAB_COUNTED cudaEventSynchronize(cudaEvent_t event) {
  static const auto real = runtime<decltype(cudaEventSynchronize)>("cudaEventSynchronize");
  ++waits;
  return real(event);
}

MOELAB_COUNTED cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  static const auto real = runtime<decltype(cudaMemcpy)>("cudaMemcpy");
  ++waits;
  return real(to, from, bytes, kind);
}

MOELAB_COUNTED cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                               cudaStream_t stream) {
  static const auto real = runtime<decltype(cudaMemcpyAsync)>("cudaMemcpyAsync");
  copied_to_host = kind == cudaMemcpyDeviceToHost;
  if (copied_to_host) ++waits;
  return real(to, from, bytes, kind, stream);
}

MOELAB_COUNTED cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                            size_t height, cudaMemcpyKind kind) {
  static const auto real = runtime<decltype(cudaMemcpy2D)>("cudaMemcpy2D");
  ++waits;
  return real(to, to_pitch, from, from_pitch, width, height, kind);
}

MOELAB_COUNTED cudaFree(void* memory) {
  static const auto real = runtime<decltype(cudaFree)>("cudaFree");
  ++waits;
  return real(memory);
}

MOELAB_COUNTED cudaFreeHost(void* memory) {
  static const auto real = runtime<decltype(cudaFreeHost)>("cudaFreeHost");
  ++waits;
  return real(memory);
}

}  // extern "C"

namespace moelab::test {

int64_t cuda_waits() { return waits; }

}  // namespace moelab::test
