#include "train/memory/split.h"

#include <gtest/gtest.h>

#include <vector>

namespace moelab {
namespace {

using Splits = std::vector<std::pair<int64_t, int64_t>>;

Splits down(Split split) {
  Splits all;
  for (auto next = halved(split); next; next = halved(*next))
    all.emplace_back(next->micro_batch, next->accumulation);
  return all;
}

TEST(Split, HalvesDownToOne) {
  EXPECT_EQ(down({8, 1}), (Splits{{4, 2}, {2, 4}, {1, 8}}));
  EXPECT_EQ(down({12, 1}), (Splits{{6, 2}, {3, 4}, {1, 12}}));
  EXPECT_EQ(down({3, 1}), (Splits{{1, 3}}));
  EXPECT_EQ(down({7, 2}), (Splits{{2, 7}, {1, 14}}));
  EXPECT_EQ(down({5, 3}), (Splits{{1, 15}}));
  EXPECT_EQ(down({1, 6}), Splits{});
}

TEST(Split, KeepsTheRowsOfEveryStep) {
  for (int64_t micro_batch = 1; micro_batch <= 40; ++micro_batch) {
    for (int64_t accumulation = 1; accumulation <= 6; ++accumulation) {
      const Split split{micro_batch, accumulation};
      if (const auto next = halved(split)) {
        EXPECT_EQ(next->rows(), split.rows());
        EXPECT_LE(2 * next->micro_batch, micro_batch);
      } else {
        EXPECT_EQ(micro_batch, 1);
      }
      if (const auto next = doubled(split, 64)) {
        EXPECT_EQ(next->rows(), split.rows());
        EXPECT_GT(next->micro_batch, micro_batch);
        EXPECT_LE(next->micro_batch, 64);
      }
    }
  }
}

TEST(Split, DoublesUpToTheMost) {
  EXPECT_EQ(doubled({1, 8}, 8), (Split{2, 4}));
  EXPECT_EQ(doubled({4, 2}, 8), (Split{8, 1}));
  EXPECT_EQ(doubled({4, 4}, 6), std::nullopt);   // 5 and 6 do not divide 16
  EXPECT_EQ(doubled({4, 3}, 6), (Split{6, 2}));  // less than a doubling, but larger
  EXPECT_EQ(doubled({1, 3}, 3), (Split{3, 1}));
  EXPECT_EQ(doubled({8, 1}, 100), std::nullopt);  // already all rows at once
}

}  // namespace
}  // namespace moelab
