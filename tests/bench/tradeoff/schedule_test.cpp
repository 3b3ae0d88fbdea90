#include "bench/tradeoff/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace moelab::tradeoff {
namespace {

TEST(Schedule, EveryRoundRunsEveryCaseOnceAtCountedPositions) {
  for (const size_t cases : {1, 2, 7, 23}) {
    const std::vector<Slot> slots = schedule(cases, 6);
    ASSERT_EQ(slots.size(), 6 * cases);
    for (size_t i = 0; i < slots.size(); ++i) {
      EXPECT_EQ(slots[i].round, static_cast<int64_t>(i / cases) + 1);
      EXPECT_EQ(slots[i].position, static_cast<int64_t>(i % cases) + 1);
    }
    for (size_t round = 0; round < 6; ++round) {
      std::set<size_t> seen;
      for (size_t i = 0; i < cases; ++i) seen.insert(slots[round * cases + i].case_index);
      EXPECT_EQ(seen.size(), cases);
    }
  }
}

TEST(Schedule, TheFirstRoundStartsWithTheBaselineAndRoundsAreRotations) {
  const std::vector<Slot> slots = schedule(10, 3);
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(slots[i].case_index, i);
  for (size_t i = 0; i < slots.size(); ++i) {
    const size_t next = i % 10 == 9 ? i - 9 : i + 1;  // within the round, which is a ring
    EXPECT_EQ(slots[next].case_index, (slots[i].case_index + 1) % 10);
  }
}

// Over the rounds a case is early, in the middle and late alike: its mean position is that of all.
TEST(Schedule, StartsSpreadOverTheCases) {
  constexpr size_t kCases = 10;
  for (const int64_t rounds : {3, 5, 8}) {
    std::vector<double> sum(kCases);
    for (const Slot& slot : schedule(kCases, rounds))
      sum[slot.case_index] += static_cast<double>(slot.position);
    for (const double total : sum) EXPECT_NEAR(total / static_cast<double>(rounds), (kCases + 1) / 2.0, 2.5);
  }
}

// A sweep that is given more rounds later keeps the ones it has.
TEST(Schedule, MoreRoundsBeginWithTheSameOnes) {
  const std::vector<Slot> few = schedule(7, 2), many = schedule(7, 5);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
}

}  // namespace
}  // namespace moelab::tradeoff
