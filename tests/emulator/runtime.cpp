// The CUDA runtime as libc10_cuda and our operators call it, for a device whose memory is the host's: one GPU
// of compute capability 9.0, or MOELAB_EMULATOR_CAPABILITY (as "8.0"), with a driver for this CUDA version,
// or for MOELAB_EMULATOR_DRIVER (as "12.8"; 0: no driver). When work is done: streams.h. Linked before
// libcudart, it stands in front of it; LibTorch's own CUDA kernels, which libtorch_cuda holds, are replaced
// by fallback.cpp.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "tests/emulator/capture.h"
#include "tests/emulator/fibers.h"
#include "tests/emulator/streams.h"

using namespace moelab::emulator;

namespace {

constexpr size_t kDeviceBytes = size_t{16} << 30;
constexpr size_t kAlignment = 16;

// Each block ends, but for what aligns it, at a page that nobody may touch: a kernel that reads or writes
// behind it crashes. Unwritten memory is 0xFF, which is NaN in every floating type.
struct Memory {
  struct Mapping {
    void* base;
    size_t mapped, bytes;
  };
  std::mutex mutex;
  std::map<void*, Mapping> blocks;
  std::map<const char*, size_t> pinned;  // bytes of host memory, by address
  std::map<cudaMemcpyKind, std::set<cudaStream_t>> copying;
  size_t allocated = 0;
};
Memory& memory() {
  static Memory& all = *new Memory;  // blocks are freed until the process ends
  return all;
}

// Under the mutex.
bool is_on_device(const void* address) {
  const auto block = memory().blocks.upper_bound(const_cast<void*>(address));
  if (block == memory().blocks.begin()) return false;
  const auto& [begin, mapping] = *std::prev(block);
  return static_cast<const char*>(address) < static_cast<const char*>(begin) + mapping.bytes;
}

void note_copy(const void* to, const void* from, cudaStream_t stream) {
  const std::lock_guard lock(memory().mutex);
  if (is_on_device(to) == is_on_device(from)) return;
  memory().copying[is_on_device(to) ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost].insert(stream);
}

size_t rounded_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

struct Version {
  int major, minor;
};
Version version_of(const char* variable, Version otherwise) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  Version version{};
  std::sscanf(text, "%d.%d", &version.major, &version.minor);
  return version;
}

Version driver() {
  return version_of("MOELAB_EMULATOR_DRIVER", {CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10});
}

// Waiting is not permitted in a capture; elsewhere it tells of a kernel that failed.
cudaError_t waited() { return capturing() ? cudaErrorStreamCaptureUnsupported : take_error(); }

// Work of a stream: put off or, in a capture, recorded.
template <class Work>
cudaError_t queued(cudaStream_t stream, const Work& work) {
  if (capturing()) {
    record(work);
  } else {
    put_off(stream, work);
  }
  return cudaSuccess;
}

}  // namespace

namespace moelab::emulator {

bool may_wait(const void* address) {
  Memory& all = memory();
  const auto* const byte = static_cast<const char*>(address);
  const std::lock_guard lock(all.mutex);
  if (is_on_device(address)) return true;
  const auto host = all.pinned.upper_bound(byte);
  return host != all.pinned.begin() && byte < std::prev(host)->first + std::prev(host)->second;
}

std::set<cudaStream_t> streams_of_copies(cudaMemcpyKind kind) {
  const std::lock_guard lock(memory().mutex);
  return std::exchange(memory().copying[kind], {});
}

}  // namespace moelab::emulator

extern "C" {

cudaError_t cudaMalloc(void** block, size_t bytes) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  if (all.allocated + bytes > kDeviceBytes) return cudaErrorMemoryAllocation;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t used = rounded_up(bytes, kAlignment), whole = rounded_up(used, page);
  char* const base = static_cast<char*>(mmap(nullptr, whole + page, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (base == MAP_FAILED || mprotect(base + whole, page, PROT_NONE) != 0) return cudaErrorMemoryAllocation;
  std::memset(base, 0xFF, whole);
  *block = base + whole - used;
  all.blocks[*block] = {base, whole + page, bytes};
  all.allocated += bytes;
  return cudaSuccess;
}

// Waits for the device, as CUDA's does.
cudaError_t cudaFree(void* block) {
  catch_up_all();
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  if (block == nullptr) return cudaSuccess;
  const auto found = all.blocks.find(block);
  if (found == all.blocks.end()) return cudaErrorInvalidValue;
  munmap(found->second.base, found->second.mapped);
  all.allocated -= found->second.bytes;
  all.blocks.erase(found);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* block) {
  std::free(block);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = kDeviceBytes;
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  *free = kDeviceBytes - all.allocated;
  return cudaSuccess;
}

// Host memory that is not pinned has been copied when the call returns.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  note_copy(to, from, stream);
  const bool at_once = !may_wait(to) || !may_wait(from);
  queued(stream, [=] { std::memmove(to, from, bytes); });
  if (at_once) catch_up(stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  catch_up(nullptr);
  std::memmove(to, from, bytes);
  return waited();
}
cudaError_t cudaMemcpy2D(void*, size_t, const void*, size_t, size_t, size_t, cudaMemcpyKind) {
  return cudaErrorNotSupported;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return queued(stream, [=] { std::memset(to, value, bytes); });
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

cudaError_t cudaHostRegister(void* memory_of_host, size_t bytes, unsigned) {
  const std::lock_guard lock(memory().mutex);
  memory().pinned[static_cast<char*>(memory_of_host)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory_of_host) {
  const std::lock_guard lock(memory().mutex);
  memory().pinned.erase(static_cast<char*>(memory_of_host));
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (driver().major == 0) return cudaErrorNoDevice;
  if (driver().major < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* all, int) {
  *all = {};
  std::snprintf(all->name, sizeof(all->name), "emulator");
  const Version capability = version_of("MOELAB_EMULATOR_CAPABILITY", {9, 0});
  all->major = capability.major;
  all->minor = capability.minor;
  all->multiProcessorCount = 1;
  all->warpSize = 32;
  all->maxThreadsPerBlock = 1024;
  all->totalGlobalMem = kDeviceBytes;
  all->sharedMemPerBlock = kShared;
  return cudaSuccess;
}
// Of the attributes, what our kernels set.
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || size_t(value) > kMostShared)
    return cudaErrorInvalidValue;
  allow_dynamic_shared(static_cast<size_t>(value));
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver().major * 1000 + driver().minor * 10;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = capturing() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return take_error(); }

}  // extern "C"
