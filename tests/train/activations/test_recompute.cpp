#include <gtest/gtest.h>

#include <algorithm>

#include "train/activations/recompute.h"

namespace moelab {
namespace {

using Flags = std::vector<bool>;

Flags layers_of(CheckpointMode mode, int64_t every, std::vector<int64_t> layers, double ratio,
                int64_t count) {
  return recomputed_layers({mode, every, std::move(layers), ratio}, count);
}

TEST(RecomputedLayers, FollowTheSettings) {
  EXPECT_EQ(layers_of(CheckpointMode::none, 1, {}, 1, 3), (Flags{false, false, false}));
  EXPECT_EQ(layers_of(CheckpointMode::full, 1, {}, 0, 3), (Flags{true, true, true}));
  EXPECT_EQ(layers_of(CheckpointMode::every, 2, {}, 0, 5), (Flags{true, false, true, false, true}));
  EXPECT_EQ(layers_of(CheckpointMode::every, 9, {}, 0, 3), (Flags{true, false, false}));
  EXPECT_EQ(layers_of(CheckpointMode::layers, 1, {0, 2}, 0, 3), (Flags{true, false, true}));
  EXPECT_EQ(layers_of(CheckpointMode::segments, 2, {}, 0, 3), (Flags{false, false, false}));
  EXPECT_EQ(layers_of(CheckpointMode::segments, 1, {}, 0, 3), (Flags{true, true, true}));
}

TEST(RecomputedLayers, RatioSpreadsEvenly) {
  const auto chosen = [](double ratio, int64_t layers) {
    const Flags flags = layers_of(CheckpointMode::ratio, 1, {}, ratio, layers);
    return std::count(flags.begin(), flags.end(), true);
  };
  EXPECT_EQ(layers_of(CheckpointMode::ratio, 1, {}, 0.5, 4), (Flags{true, false, true, false}));
  EXPECT_EQ(chosen(0, 6), 0);
  EXPECT_EQ(chosen(1, 6), 6);
  EXPECT_EQ(chosen(0.5, 12), 6);
  EXPECT_EQ(chosen(1.0 / 3, 12), 4);
  EXPECT_EQ(chosen(0.25, 12), 3);
}

TEST(RecomputeRunner, HasPiecesOfTheBlocksThatAreKept) {
  RecomputeRunner runner({true, false, true}, {Piece::norms, Piece::moe}), none({true, false});
  EXPECT_EQ(runner.pieces(0), nullptr);
  EXPECT_EQ(runner.pieces(2), nullptr);
  ASSERT_NE(runner.pieces(1), nullptr);
  EXPECT_TRUE(runner.pieces(1)->recomputes(Piece::norms) && runner.pieces(1)->recomputes(Piece::moe));
  EXPECT_FALSE(runner.pieces(1)->recomputes(Piece::attention) ||
               runner.pieces(1)->recomputes(Piece::expert_hidden));
  EXPECT_EQ(none.pieces(1), nullptr);
}

}  // namespace
}  // namespace moelab
