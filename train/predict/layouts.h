#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train/predict/cost_model.h"
#include "train/predict/network.h"
#include "train/predict/techniques/combinations.h"
#include "train/settings/settings.h"

namespace moelab {

// How a run may lie on its ranks, as settings of the groups parallel and placement.
struct RankLayoutOption {
  Changes changes;          // all layouts that are compared have the same keys
  int64_t more_passes = 1;  // so many micro-batches more, because so many fewer ranks take rows: a step
                            // trains on the same sequences
};

// What data-parallel ranks may divide, and when they add gradients: the layouts of a run whose other axes
// stay. None for one rank.
std::vector<RankLayoutOption> rank_layouts(int64_t ranks);

// The most promising ways to lay out the ranks of `base`, a resolved run, over all axes: powers of two along
// tensor (within a machine), pipeline and expert, the rest along data, where the model divides so. Each is
// judged by predicted time and by the formula of its peak with a few techniques, and those are taken that are
// fastest within `room` bytes, and the smallest. Layouts that change a key in `pinned` are none.
std::vector<RankLayoutOption> best_layouts(const Settings& base, const std::vector<std::string>& pinned,
                                           const CostModel& costs, const Network& network, int64_t room);

}  // namespace moelab
