#include "bench/tradeoff/spread.h"

#include <gtest/gtest.h>

namespace moelab::tradeoff {
namespace {

TEST(Spread, MediansOfEvenAndOddNumbers) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

TEST(Spread, OneRatioOrEqualOnesSpreadByNothing) {
  EXPECT_EQ(relative_spread({}), 0);
  EXPECT_EQ(relative_spread({1.7}), 0);
  EXPECT_EQ(relative_spread({2, 2, 2, 2}), 0);
}

// A resampled median is the least of n when more than half of the draws are: (7/27) for n = 3, 0.058 for n =
// 5, so that the interval of 2.5 % to 97.5 % is from least to largest; for n = 7 it is 0.010, and the second
// and sixth bound it.
TEST(Spread, SmallSetsByHand) {
  EXPECT_DOUBLE_EQ(relative_spread({1.0, 2.0, 1.5}), 0.5 / 1.5);
  EXPECT_DOUBLE_EQ(relative_spread({1.0, 2.0, 1.9, 1.8, 1.6}), 0.5 / 1.8);
  EXPECT_DOUBLE_EQ(relative_spread({0.1, 1.0, 1.1, 1.2, 1.3, 1.5, 9.0}), 0.25 / 1.2);
}

}  // namespace
}  // namespace moelab::tradeoff
