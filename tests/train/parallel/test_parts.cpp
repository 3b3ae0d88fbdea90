#include "train/parallel/parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

namespace moelab {
namespace {

// {shape of the cut, align}, elements of the weight's last axis
struct PartsCase {
  Cut cut;
  int64_t row;
};
const PartsCase kCases[] = {{{{1000 * 384}, 1}, 384}, {{{1000 * 384}, 256}, 384}, {{{300, 64}, 32}, 64},
                            {{{7, 96, 64}, 1}, 64},   {{{384}, 1}, 384},          {{{1, 384}, 1}, 384},
                            {{{5 * 100}, 32}, 100}};

TEST(Parts, CoverEveryElementOnceAndEndWhereTheyMay) {
  for (const PartsCase& c : kCases) {
    for (int64_t ranks = 1; ranks <= 5; ++ranks) {
      for (int64_t index = 0; index < 6; ++index) {
        const Parts parts = parts_of(c.cut, c.row, ranks, index);
        EXPECT_EQ(parts.ranks(), ranks);
        EXPECT_EQ(parts.starts.front(), 0);
        EXPECT_EQ(parts.starts.back(), c.cut.shape.front());
        EXPECT_TRUE(std::is_sorted(parts.starts.begin(), parts.starts.end()));
        for (int64_t r = 1; r < ranks; ++r) {
          const bool end = parts.starts[r] == parts.starts.back();
          EXPECT_TRUE(end || parts.starts[r] % c.cut.align == 0);
          EXPECT_TRUE(end || parts.first_element(r) % c.row == 0);
        }
        const std::vector<int64_t> elements = parts.elements();
        EXPECT_EQ(std::accumulate(elements.begin(), elements.end(), int64_t{0}),
                  parts.cut.shape.front() * parts.row_elements());
      }
    }
  }
}

TEST(Parts, DifferByAtMostTwoUnits) {
  const Parts parts = parts_of({{1000 * 384}, 1}, 384, 7, 3);
  const std::vector<int64_t> elements = parts.elements();
  const auto [least, most] = std::minmax_element(elements.begin(), elements.end());
  EXPECT_LE(*most - *least, 2 * 384);
}

// What cannot be cut goes to one rank after another.
TEST(Parts, WholeWeightsTakeTurns) {
  std::vector<int64_t> owned(4);
  for (int64_t index = 0; index < 8; ++index) {
    const std::vector<int64_t> elements = parts_of({{1, 64, 64}, 1}, 64, 4, index).elements();
    EXPECT_EQ(std::count(elements.begin(), elements.end(), 64 * 64), 1);
    std::transform(owned.begin(), owned.end(), elements.begin(), owned.begin(), std::plus<>());
  }
  EXPECT_EQ(owned, std::vector<int64_t>(4, 2 * 64 * 64));
}

}  // namespace
}  // namespace moelab
