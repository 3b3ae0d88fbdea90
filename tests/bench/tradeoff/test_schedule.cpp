#include "bench/tradeoff/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace moelab::tradeoff {
namespace {

using Groups = std::vector<std::vector<size_t>>;

// Cases that are all held against the first.
std::vector<size_t> against_first(size_t cases) { return std::vector<size_t>(cases, 0); }

Groups one_group(size_t cases) {
  Groups groups(1, std::vector<size_t>(cases));
  std::iota(groups[0].begin(), groups[0].end(), size_t{0});
  return groups;
}

TEST(Groups, AreOneWhereThereAreFewCases) {
  for (const size_t cases : {1, 2, 9}) EXPECT_EQ(groups_of(against_first(cases)), one_group(cases));
}

TEST(Groups, HaveTheReferenceInEachAndEveryOtherCaseOnce) {
  for (const size_t cases : {10, 17, 18, 41}) {
    const Groups groups = groups_of(against_first(cases));
    EXPECT_EQ(groups.size(), (cases - 1 + kSideBySide - 1) / kSideBySide);
    std::vector<size_t> others;
    for (const auto& group : groups) {
      EXPECT_EQ(group.front(), 0);
      EXPECT_LE(group.size(), kSideBySide + 1);
      others.insert(others.end(), group.begin() + 1, group.end());
    }
    std::vector<size_t> all(cases - 1);
    std::iota(all.begin(), all.end(), size_t{1});
    EXPECT_EQ(others, all);
  }
}

// 3 is held against 0, and cases 4 … 13 against 3; 14 against 0.
TEST(Groups, HaveTheReferencesOfReferencesToo) {
  std::vector<size_t> against(15, 0);
  for (size_t i = 4; i < 14; ++i) against[i] = 3;
  EXPECT_EQ(groups_of(against), (Groups{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {0, 3, 10, 11, 12, 13, 14}}));
}

TEST(Groups, NeedNoReference) {
  std::vector<size_t> alone(11);
  std::iota(alone.begin(), alone.end(), size_t{0});
  EXPECT_EQ(groups_of(alone), (Groups{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10}}));
}

TEST(Schedule, APassRunsEveryGroupInARoundOfItsOwn) {
  const Groups groups = groups_of(against_first(20));
  std::set<int64_t> rounds;
  for (int64_t pass = 1; pass <= 5; ++pass) {
    const std::vector<Slot> slots = schedule(groups, pass);
    size_t next = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      std::set<size_t> seen;
      for (size_t i = 0; i < groups[g].size(); ++i, ++next) {
        EXPECT_EQ(slots[next].round, (pass - 1) * 3 + static_cast<int64_t>(g) + 1);
        EXPECT_EQ(slots[next].position, static_cast<int64_t>(i) + 1);
        seen.insert(slots[next].case_index);
      }
      EXPECT_EQ(seen, std::set<size_t>(groups[g].begin(), groups[g].end()));
      EXPECT_TRUE(rounds.insert(slots[next - 1].round).second);
    }
    EXPECT_EQ(next, slots.size());
  }
}

TEST(Schedule, TheFirstPassStartsWithTheBaselineAndRoundsAreRotations) {
  for (int64_t pass = 1; pass <= 3; ++pass) {
    const std::vector<Slot> slots = schedule(one_group(10), pass);
    EXPECT_TRUE(pass > 1 || slots.front().case_index == 0);
    for (size_t i = 0; i < slots.size(); ++i)
      EXPECT_EQ(slots[(i + 1) % 10].case_index, (slots[i].case_index + 1) % 10);
  }
}

// Over the passes a case is early, in the middle and late alike: its mean position is that of all.
TEST(Schedule, StartsSpreadOverTheCases) {
  constexpr size_t kCases = 10;
  for (const int64_t passes : {3, 5, 8}) {
    std::vector<double> sum(kCases);
    for (int64_t pass = 1; pass <= passes; ++pass)
      for (const Slot& slot : schedule(one_group(kCases), pass))
        sum[slot.case_index] += static_cast<double>(slot.position);
    for (const double total : sum) EXPECT_NEAR(total / static_cast<double>(passes), (kCases + 1) / 2.0, 2.5);
  }
}

}  // namespace
}  // namespace moelab::tradeoff
