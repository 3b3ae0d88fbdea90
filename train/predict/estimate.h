#pragma once
#include <cstdint>

#include "train/predict/dry_run.h"
#include "train/settings/settings.h"

namespace moelab {

// Device memory that a run needs: the dry run's tensors and, on a GPU, what CUDA's caching allocator reserves
// for them.
struct Estimate {
  DryRun run;
  int64_t reserved = 0;  // 0 unless the device is CUDA

  // True if tensors and reserve stay within `limit` bytes; 0: no limit.
  bool fits(int64_t limit) const;
};

// Runs dry_run() and replays its allocations in a model of CUDA's caching allocator
// (train/predict/caching_allocator.h), configured by PYTORCH_CUDA_ALLOC_CONF and limited by memory.limit. The
// allocator returns cached segments to the device only when it would exceed the limit. Throws what dry_run()
// throws.
Estimate estimate(const Settings& settings);

}  // namespace moelab
