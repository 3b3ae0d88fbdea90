#pragma once
#include <cstdint>

#include "train/config/settings.h"
#include "train/run/dry_run.h"

namespace moelab {

// What a run needs of its device: the tensors of the dry run and, on a GPU, what CUDA's caching allocator
// reserves for them.
struct Estimate {
  DryRun run;
  int64_t reserved = 0;  // 0: not for CUDA

  // Within a budget of so many bytes; 0: there is none.
  bool fits(int64_t limit) const;
};

// Feeds the dry run to a model of the allocator that PYTORCH_CUDA_ALLOC_CONF configures and memory.limit
// bounds (train/memory/caching_allocator.h): it gives cached segments back only where it would pass the
// limit. Throws what dry_run() throws.
Estimate estimate(const Settings& settings);

}  // namespace moelab
