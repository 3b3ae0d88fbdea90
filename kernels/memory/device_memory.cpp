#include "kernels/memory/device_memory.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include "kernels/memory/block_cache.h"
#include "kernels/memory/ledger.h"
#ifdef MOELAB_WITH_CUDA
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <map>
#include <mutex>
#endif

namespace moelab {
namespace {

Ledger& ledger_of(c10::Device device) {
  TORCH_CHECK(device.is_cpu() || device.is_meta(), "no memory statistics for device ", device);
  return device.is_cpu() ? cpu_ledger() : meta_ledger();
}

#ifdef MOELAB_WITH_CUDA
namespace caching = c10::cuda::CUDACachingAllocator;

// LibTorch makes the allocator with the first tensor; before that, asking it throws.
void make_allocator() { at::globalContext().lazyInitDevice(c10::kCUDA); }

// The limits asked for, in bytes: the allocator keeps only a fraction, which would round them.
struct CudaLimits {
  std::mutex mutex;
  std::map<c10::DeviceIndex, int64_t> bytes;
};

CudaLimits& cuda_limits() {
  static CudaLimits limits;
  return limits;
}

int64_t cuda_total(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(total);
}

DeviceMemory cuda_memory(c10::Device device) {
  make_allocator();
  const auto stats = caching::getDeviceStats(device.index());
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto& allocated = stats.allocated_bytes[all];
  const auto& reserved = stats.reserved_bytes[all];
  CudaLimits& limits = cuda_limits();
  const std::lock_guard lock(limits.mutex);
  const auto limit = limits.bytes.find(device.index());
  return {allocated.current, reserved.current, allocated.peak, reserved.peak,
          limit == limits.bytes.end() ? 0 : limit->second};
}

void set_cuda_limit(c10::Device device, int64_t bytes) {
  make_allocator();
  const double share = bytes > 0 ? static_cast<double>(bytes) / static_cast<double>(cuda_total(device)) : 1.0;
  caching::setMemoryFraction(std::min(share, 1.0), device.index());
  CudaLimits& limits = cuda_limits();
  const std::lock_guard lock(limits.mutex);
  limits.bytes[device.index()] = bytes;
}
#endif

}  // namespace

DeviceMemory device_memory(c10::Device device) {
#ifdef MOELAB_WITH_CUDA
  if (device.is_cuda()) return cuda_memory(device);
#endif
  const Ledger& ledger = ledger_of(device);
  const int64_t allocated = ledger.allocated(), peak = ledger.peak();
  return {allocated, allocated, peak, peak, ledger.limit()};
}

int64_t phase_peak(c10::Device device, Phase phase) {
  if (device.is_cuda()) return device_memory(device).allocated;
  return ledger_of(device).phase_peak(phase);
}

void reset_peaks(c10::Device device) {
#ifdef MOELAB_WITH_CUDA
  if (device.is_cuda()) {
    make_allocator();
    return caching::resetPeakStats(device.index());
  }
#endif
  ledger_of(device).reset_peaks();
}

void set_limit(c10::Device device, int64_t bytes) {
#ifdef MOELAB_WITH_CUDA
  if (device.is_cuda()) return set_cuda_limit(device, bytes);
#endif
  ledger_of(device).set_limit(bytes);
}

void release_cached(c10::Device device) {
#ifdef MOELAB_WITH_CUDA
  if (device.is_cuda()) return caching::emptyCache();
#endif
  if (device.is_cpu()) cpu_blocks().clear();
}

int64_t total_memory(c10::Device device) {
#ifdef MOELAB_WITH_CUDA
  if (device.is_cuda()) return cuda_total(device);
#endif
  TORCH_CHECK(device.is_cpu() || device.is_meta(), "no memory statistics for device ", device);
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace moelab
