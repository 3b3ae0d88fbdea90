#pragma once
#include <array>
#include <cstdint>

#include "train/predict/dry_run.h"

namespace moelab {

// What one of several data-parallel ranks would hold at the peak under a ZeRO stage (Rajbhandari 2020, arXiv
// 1910.02054). Bytes.
struct RankState {
  int stage = 0;
  int64_t weights = 0, gradients = 0;
  int64_t optimizer = 0;  // its state and the fp32 masters
  int64_t peak = 0;
};

// By formula, for stages 0 (nothing sharded), 1 (optimizer), 2 (gradients too) and 3 (weights too): bytes
// that a stage shards are divided by `ranks` (at least 1). Communication is left out: its buffers, and the
// block's weights that ZeRO-3 gathers.
std::array<RankState, 4> rank_states(const DryRun& run, int64_t ranks);

}  // namespace moelab
