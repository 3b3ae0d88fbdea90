#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "kernels/update/capturable_step_device.h"

// Gradients (3, 4) have the norm 5.
namespace moelab {
namespace {

TEST(StepDecision, NormsAboveTheClipAreScaledToIt) {
  EXPECT_DOUBLE_EQ(clip_scale(3, 1.5), 0.5);
  EXPECT_EQ(clip_scale(3, 3), 1);
  EXPECT_EQ(clip_scale(3, 4), 1);
  EXPECT_EQ(clip_scale(3, 0), 1);
  EXPECT_EQ(clip_scale(0, 1), 1);
}

TEST(StepDecision, TheLossScaleIsTakenOutBeforeTheNormIsClipped) {
  const double scale = 8, squares = 64 * (9 + 16);  // of gradients 8 times as large
  const std::vector<std::pair<double, double>> factors = {{0, 1}, {2.5, 0.5}, {4, 0.8}, {5, 1}, {40, 1}};
  for (const auto& [clip, factor] : factors) {
    const StepDecision d = decide_step(squares, 1, scale, clip);
    EXPECT_FALSE(d.skipped);
    EXPECT_EQ(d.gradient_norm, 5);
    EXPECT_DOUBLE_EQ(d.gradient_scale * scale, factor) << clip;
  }
}

TEST(StepDecision, WhatIsNotFiniteIsSkipped) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {inf, nan}) {
    EXPECT_TRUE(decide_step(bad, 1, 1, 1).skipped);
    EXPECT_TRUE(decide_step(25, bad, 1, 1).skipped);
    EXPECT_TRUE(decide_step(25, -bad, 1, 1).skipped);
  }
  EXPECT_FALSE(decide_step(0, 0, 1, 1).skipped);
}

// Parts of a step that add up their squares and losses decide as the whole does.
TEST(StepDecision, PartsThatAddUpDecideLikeTheWhole) {
  const std::vector<double> squares = {0.5, 3.25, 16};
  CapturableStep live;
  live.loss_scale = 4;
  settle(live, squares.data(), 3, 2, 1);
  const StepDecision d = decide_step(0.5 + 3.25 + 16, 0.75 + 1.25, 4, 1);
  EXPECT_EQ(live.skipped != 0, d.skipped);
  EXPECT_EQ(live.gradient_norm, d.gradient_norm);
  EXPECT_EQ(live.gradient_scale, d.gradient_scale);
  EXPECT_EQ(decision_of(live).gradient_norm, d.gradient_norm);
}

}  // namespace
}  // namespace moelab
