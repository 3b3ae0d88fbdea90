#pragma once
#include <cstdint>
#include <optional>

#include "train/predict/dry_run.h"
#include "train/predict/gpu.h"
#include "train/settings/settings.h"

namespace moelab {

// Device memory that a run needs: the dry run's tensors and, on a GPU, what CUDA's caching allocator reserves
// for them and for cuBLAS's workspaces, and CUDA's context.
struct Estimate {
  DryRun run;
  std::optional<Gpu> gpu = {};  // none: the CPU
  int64_t reserved = 0;         // with the workspaces; 0 on the CPU

  // What the allocator needs, which memory.limit bounds.
  int64_t needed() const;
  // The same with CUDA's context: what the run takes of a card.
  int64_t on_card() const { return needed() + (gpu ? kContextBytes : 0); }
  // Whether the run stays within `limit` bytes (0: no limit) and, with CUDA's context, within a card whose
  // memory is known.
  bool fits(int64_t limit) const;
};

// Runs dry_run() and replays its allocations in a model of CUDA's caching allocator
// (train/predict/caching_allocator.h), configured by memory.* and the environment and limited by
// memory.limit. The allocator returns cached segments to the device only when it would exceed the limit.
// Throws what dry_run() throws. Without `gpu` it is for the card of run.preset.
Estimate estimate(const Settings& settings);
Estimate estimate(const Settings& settings, const Gpu& gpu);

}  // namespace moelab
