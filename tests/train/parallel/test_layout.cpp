#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "moe/settings/error.h"
#include "train/parallel/layout.h"

namespace moelab {
namespace {

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Layout, DataTakesWhatTheOthersLeave) {
  EXPECT_EQ(layout_of(24, 0, 2, 3, 1).data, 4);
  EXPECT_EQ(layout_of(1, 0, 1, 1, 1).ranks(), 1);
  EXPECT_EQ(error_of([] { layout_of(8, 0, 3, 1, 1); }),
            "parallel.tensor=3 times parallel.pipeline=1 does not divide the 8 ranks of this run");
  EXPECT_EQ(
      error_of([] { layout_of(8, 2, 2, 1, 1); }),
      "parallel.data=2 times parallel.tensor=2 times parallel.pipeline=1 takes 4 ranks; this run has 8");
  EXPECT_EQ(error_of([] { layout_of(8, 4, 2, 1, 3); }),
            "parallel.expert=3 does not divide the 4 data-parallel ranks");
}

// Written out by hand: pipeline 2, data 4 as 2 replicas of 2 expert ranks, tensor 2.
TEST(Layout, NumbersRanksTensorFirst) {
  const RankLayout layout = layout_of(16, 4, 2, 2, 2);
  const Place place = place_of(layout, 13);  // 1101 in binary: pipeline 1, replica 1, expert 0, tensor 1
  EXPECT_EQ(place.pipeline, 1);
  EXPECT_EQ(place.replicas, 1);
  EXPECT_EQ(place.expert, 0);
  EXPECT_EQ(place.tensor, 1);
  EXPECT_EQ(place.data, 2);
  using Ranks = std::vector<int64_t>;
  EXPECT_EQ(ranks_along(layout, Axis::tensor, 13), (Ranks{12, 13}));
  EXPECT_EQ(ranks_along(layout, Axis::expert, 13), (Ranks{13, 15}));
  EXPECT_EQ(ranks_along(layout, Axis::replicas, 13), (Ranks{9, 13}));
  EXPECT_EQ(ranks_along(layout, Axis::data, 13), (Ranks{9, 11, 13, 15}));
  EXPECT_EQ(ranks_along(layout, Axis::pipeline, 13), (Ranks{5, 13}));
  EXPECT_EQ(ranks_along(layout, Axis::stage, 13), (Ranks{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(ranks_along(layout, Axis::all, 13).size(), 16U);
}

// Along each axis the ranks fall into groups that have no rank in common and leave none out.
TEST(Layout, GroupsOfAnAxisPartTheWorld) {
  for (const RankLayout& layout :
       {layout_of(24, 4, 3, 2, 2), layout_of(24, 6, 1, 4, 3), layout_of(6, 6, 1, 1, 1)}) {
    for (const Axis axis :
         {Axis::data, Axis::replicas, Axis::expert, Axis::tensor, Axis::pipeline, Axis::stage, Axis::all}) {
      std::set<std::vector<int64_t>> groups;
      std::multiset<int64_t> members;
      for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
        const auto ranks = ranks_along(layout, axis, rank);
        EXPECT_TRUE(std::find(ranks.begin(), ranks.end(), rank) != ranks.end());
        if (groups.insert(ranks).second) members.insert(ranks.begin(), ranks.end());
      }
      EXPECT_EQ(members.size(), static_cast<size_t>(layout.ranks()));
      EXPECT_EQ(*members.rbegin(), layout.ranks() - 1);
      EXPECT_EQ(std::set<int64_t>(members.begin(), members.end()).size(), members.size());
    }
  }
}

}  // namespace
}  // namespace moelab
