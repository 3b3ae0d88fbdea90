#include <gtest/gtest.h>

#include "train/predict/rank_state.h"
#include "train/settings/load.h"
#include "train/settings/presets/parameter_count.h"

namespace moelab {
namespace {

DryRun textbook_run() {
  return dry_run(
      load_settings({.config = "dense-7b",
                     .overrides = {"precision.compute=bf16", "model.layers=2", "train.accumulation=2"}}));
}

// Rajbhandari 2020, figure 1: of 2 + 2 + 12 bytes per parameter in mixed precision, each of N ranks holds 4 +
// 12 / N, 2 + 14 / N or 16 / N. Here gradients are summed in fp32 and have 4 bytes instead of 2.
TEST(RankState, IsThePapersFormula) {
  const auto p = static_cast<double>(
      parameter_count(load_settings({.config = "dense-7b", .overrides = {"model.layers=2"}}).model));
  const DryRun run = textbook_run();
  for (const int64_t ranks : {2, 8, 64}) {
    const auto states = rank_states(run, ranks);
    const auto n = static_cast<double>(ranks);
    for (const RankState& state : states) {
      EXPECT_NEAR(static_cast<double>(state.optimizer), p * 12 / (state.stage >= 1 ? n : 1), 1e-3 * p);
      EXPECT_NEAR(static_cast<double>(state.weights), p * 2 / (state.stage >= 3 ? n : 1), 1e-3 * p);
      EXPECT_NEAR(static_cast<double>(state.gradients), p * 4 / (state.stage >= 2 ? n : 1), 1e-3 * p);
      EXPECT_EQ(run.peak - state.peak, states[0].weights - state.weights + states[0].gradients -
                                           state.gradients + states[0].optimizer - state.optimizer);
    }
    EXPECT_EQ(states[0].peak, run.peak);
  }
}

TEST(RankState, OneRankHoldsEverything) {
  const DryRun run = textbook_run();
  for (const RankState& state : rank_states(run, 1)) EXPECT_EQ(state.peak, run.peak) << state.stage;
}

}  // namespace
}  // namespace moelab
