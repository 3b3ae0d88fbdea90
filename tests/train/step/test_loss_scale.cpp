#include <gtest/gtest.h>

#include "train/step/compute_type.h"
#include "train/step/loss_scale.h"

namespace moelab {
namespace {

PrecisionSettings fp16(double fixed = 0) {
  return {.compute = ComputePrecision::fp16, .master = MasterWeights::fp32, .loss_scale = {fixed}};
}

// The sequence of states, written out.
TEST(LossScale, FollowsTheTable) {
  struct Row {
    const char* what;
    int64_t good, skipped;  // steps taken, in this order
    double scale;
    int64_t good_steps;
  };
  const Row table[] = {
      {"starts at 2^15", 0, 0, 32768, 0},
      {"stays for 1999 good steps", 1999, 0, 32768, 1999},
      {"doubles with the 2000th", 1, 0, 65536, 0},
      {"halves at once", 0, 1, 32768, 0},
      {"halves each time", 0, 3, 4096, 0},
      {"good steps count anew", 1500, 1, 2048, 0},
      {"so 1999 more are not enough", 1999, 0, 2048, 1999},
      {"the 2000th is", 1, 0, 4096, 0},
      {"never below 1", 0, 20, 1, 0},
      {"and up again", 2000, 0, 2, 0},
  };
  LossScale scale(fp16());
  for (const Row& row : table) {
    for (int64_t i = 0; i < row.good; ++i) scale.update(false);
    for (int64_t i = 0; i < row.skipped; ++i) scale.update(true);
    EXPECT_EQ(scale.value(), row.scale) << row.what;
    EXPECT_EQ(scale.state().good_steps, row.good_steps) << row.what;
  }
}

TEST(LossScale, GoesOnFromItsState) {
  LossScale first(fp16()), second(fp16());
  first.update(true);
  for (int i = 0; i < 1990; ++i) first.update(false);
  second.restore(first.state());
  for (int i = 0; i < 10; ++i) {
    first.update(false);
    second.update(false);
    EXPECT_EQ(first.value(), second.value());
  }
  EXPECT_EQ(second.value(), 32768);
}

TEST(LossScale, AFixedOneStays) {
  LossScale scale(fp16(128));
  for (int i = 0; i < 2500; ++i) scale.update(i % 2 == 0);
  scale.restore({4, 7});
  EXPECT_EQ(scale.value(), 128);
}

TEST(LossScale, Bf16HasTheOneThatIsAskedFor) {
  LossScale fixed({.compute = ComputePrecision::bf16, .master = MasterWeights::fp32, .loss_scale = {128}});
  LossScale dynamic(
      {.compute = ComputePrecision::bf16, .master = MasterWeights::fp32, .loss_scale = {0, true}});
  EXPECT_TRUE(fixed.used() && dynamic.used());
  EXPECT_EQ(dynamic.value(), 32768);
  fixed.update(true), dynamic.update(true);
  EXPECT_EQ(fixed.value(), 128);
  EXPECT_EQ(dynamic.value(), 16384);
}

TEST(LossScale, OtherTypesHaveNone) {
  for (const auto compute : {ComputePrecision::fp32, ComputePrecision::bf16}) {
    PrecisionSettings precision;
    precision.compute = compute;
    LossScale scale(precision);
    EXPECT_FALSE(scale.used());
    for (int i = 0; i < 2500; ++i) scale.update(i % 2 == 0);
    scale.restore({4, 7});
    EXPECT_EQ(scale.value(), 1);
  }
}

}  // namespace
}  // namespace moelab
