#include "kernels/memory/device_memory.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include "kernels/memory/block_cache.h"
#include "kernels/memory/gpu_memory.h"
#include "kernels/memory/ledger.h"

namespace moelab {
namespace {

Ledger& ledger_of(c10::Device device) {
  TORCH_CHECK(device.is_cpu() || device.is_meta(), "no memory statistics for device ", device);
  return device.is_cpu() ? cpu_ledger() : meta_ledger();
}

}  // namespace

DeviceMemory device_memory(c10::Device device) {
  if (device.is_cuda()) return gpu_memory(device);
  const Ledger& ledger = ledger_of(device);
  const int64_t allocated = ledger.allocated(), peak = ledger.peak();
  const bool cached = device.is_cpu();
  const auto unused = static_cast<int64_t>(cached ? cpu_blocks().unasked() : 0),
             at_peak = static_cast<int64_t>(cached ? cpu_blocks().unasked_at_peak() : 0);
  return {allocated, allocated + unused, peak, peak + at_peak, ledger.limit()};
}

int64_t phase_peak(c10::Device device, Phase phase) {
  if (device.is_cuda()) return device_memory(device).allocated;
  return ledger_of(device).phase_peak(phase);
}

void reset_peaks(c10::Device device) {
  if (device.is_cuda()) return reset_gpu_peaks(device);
  ledger_of(device).reset_peaks();
  if (device.is_cpu()) cpu_blocks().reset_peak();
}

void set_limit(c10::Device device, int64_t bytes) {
  if (device.is_cuda()) return set_gpu_limit(device, bytes);
  ledger_of(device).set_limit(bytes);
}

void release_cached(c10::Device device) {
  if (device.is_cuda()) return release_cached_by_cuda();
  if (device.is_cpu()) cpu_blocks().clear();
}

void release_workspaces(c10::Device device) {
  if (device.is_cuda()) release_workspaces_of_cuda();
}

int64_t total_memory(c10::Device device) {
  if (device.is_cuda()) return total_gpu_memory(device);
  TORCH_CHECK(device.is_cpu() || device.is_meta(), "no memory statistics for device ", device);
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace moelab
