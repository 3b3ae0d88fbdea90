#pragma once
#include <c10/core/Device.h>

#include <cstdint>

#include "kernels/memory/ledger.h"

namespace moelab {

// Memory of one device, in bytes. On CPU and meta: the ledger of Home::device, exact in requested bytes. What
// is reserved is the same on meta; on the CPU it includes what the allocator's cache of blocks holds besides,
// for all homes. On CUDA: the caching allocator's numbers.
struct DeviceMemory {
  int64_t allocated = 0;
  int64_t reserved = 0;
  int64_t peak = 0;
  int64_t reserved_peak = 0;
  int64_t limit = 0;  // 0: none
};

// These throw c10::Error for devices other than cpu, meta and, where CUDA was built, cuda.
DeviceMemory device_memory(c10::Device device);
// A phase's peak since the last reset. On CUDA, which has no phases, what is allocated now.
int64_t phase_peak(c10::Device device, Phase phase);
// Peaks restart from what is allocated now.
void reset_peaks(c10::Device device);
// Limits the bytes that may be allocated; 0: no limit. On CUDA the limit is a fraction of the GPU's memory.
void set_limit(c10::Device device, int64_t bytes);
// Gives memory that the allocator keeps and nobody uses back to the system, on CUDA to the driver.
void release_cached(c10::Device device);
// Frees what matrix products keep on a GPU between calls, workspaces and cached blocks; the next product
// allocates it anew. Nothing on other devices.
void release_workspaces(c10::Device device);
// The device's memory in all: the machine's (cpu, meta) or the GPU's (cuda).
int64_t total_memory(c10::Device device);

}  // namespace moelab
