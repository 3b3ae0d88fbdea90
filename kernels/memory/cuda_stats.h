#pragma once
#include <c10/core/Device.h>

#include <cstdint>

#include "kernels/memory/ledger.h"

namespace moelab {

// Bytes of one device. On CPU and meta they are the ledger's of Home::device, exact in requested bytes, and
// what is reserved is what is allocated; on CUDA the caching allocator's.
struct DeviceMemory {
  int64_t allocated = 0;
  int64_t reserved = 0;
  int64_t peak = 0;
  int64_t reserved_peak = 0;
  int64_t limit = 0;  // 0: none
};

// These throw c10::Error for devices other than cpu, meta and, where CUDA was built, cuda.
DeviceMemory device_memory(c10::Device device);
// The ledger's peak of a phase since the last reset; on CUDA, which knows no phases, what is allocated now.
int64_t phase_peak(c10::Device device, Phase phase);
// Peaks restart from what is allocated now.
void reset_peaks(c10::Device device);
// Bytes that may be allocated from now on; on CUDA a fraction of the card's memory. 0: no limit.
void set_limit(c10::Device device, int64_t bytes);
// Gives memory that the allocator keeps and nobody uses back to the system; on CUDA to the driver.
void release_cached(c10::Device device);
// What the device has in all: the machine's memory (cpu, meta), the card's (cuda).
int64_t total_memory(c10::Device device);

}  // namespace moelab
