#include "kernels/memory/gpu_memory.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace moelab {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

// LibTorch makes the allocator with the first tensor; before that, asking it throws.
void make_allocator() { at::globalContext().lazyInitDevice(c10::kCUDA); }

// What the allocator does not keep of each GPU, in bytes.
struct Kept {
  struct OfGpu {
    int64_t limit = 0;   // as asked for: of a limit the allocator keeps a fraction, which would round it
    int64_t graphs = 0;  // of replays, see count_replays()
  };
  std::mutex mutex;
  std::map<c10::DeviceIndex, OfGpu> gpus;
};

Kept& kept() {
  static Kept kept;
  return kept;
}

}  // namespace

DeviceMemory gpu_memory(c10::Device gpu) {
  make_allocator();
  const auto stats = caching::getDeviceStats(gpu.index());
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto& allocated = stats.allocated_bytes[all];
  const auto& reserved = stats.reserved_bytes[all];
  const std::lock_guard lock(kept().mutex);
  const Kept::OfGpu& of_gpu = kept().gpus[gpu.index()];
  return {allocated.current, reserved.current,
          std::max<int64_t>(allocated.peak, allocated.current + of_gpu.graphs), reserved.peak, of_gpu.limit};
}

void reset_gpu_peaks(c10::Device gpu) {
  make_allocator();
  caching::resetPeakStats(gpu.index());
}

void set_gpu_limit(c10::Device gpu, int64_t bytes) {
  make_allocator();
  const double share =
      bytes > 0 ? static_cast<double>(bytes) / static_cast<double>(total_gpu_memory(gpu)) : 1.0;
  caching::setMemoryFraction(std::min(share, 1.0), gpu.index());
  const std::lock_guard lock(kept().mutex);
  kept().gpus[gpu.index()].limit = bytes;
}

void count_replays(c10::Device gpu, int64_t bytes) {
  const std::lock_guard lock(kept().mutex);
  kept().gpus[gpu.index()].graphs += bytes;
}

void release_cached_by_cuda() { caching::emptyCache(); }

void release_workspaces_of_cuda() {
  at::cuda::clearCublasWorkspaces();
  caching::emptyCache();
}

int64_t total_gpu_memory(c10::Device gpu) {
  const c10::cuda::CUDAGuard guard(gpu);
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(total);
}

at::Tensor pinned_memory(const at::Tensor& pages, int64_t bytes, c10::Device gpu) {
  const c10::cuda::CUDAGuard guard(gpu);
  C10_CUDA_CHECK(cudaHostRegister(pages.mutable_data_ptr(), pages.nbytes(), cudaHostRegisterPortable));
  const auto release = [pages, gpu](void* address) {
    const c10::cuda::CUDAGuard there(gpu);
    C10_CUDA_CHECK_WARN(cudaDeviceSynchronize());  // a copy may be under way
    C10_CUDA_CHECK_WARN(cudaHostUnregister(address));
  };
  return at::from_blob(pages.mutable_data_ptr(), {bytes}, release, pages.options());
}

}  // namespace moelab
