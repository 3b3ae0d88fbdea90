#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <stdexcept>

#include "train/data/sample_order.h"

namespace moelab {
namespace {

TEST(Permutation, IsABijectionForEverySize) {
  for (const uint64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 1000, 4097}) {
    const Permutation order(size, 42);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < size; ++i) seen.insert(order(i));
    EXPECT_EQ(seen.size(), size);
    EXPECT_LT(*seen.rbegin(), size);
  }
}

// Each value comes first as often as by chance: within 4 sigma of a binomial over 4,000 keys.
TEST(Permutation, PutsEveryValueFirstAboutAsOften) {
  constexpr uint64_t kSize = 10, kKeys = 4000;
  std::map<uint64_t, int> first;
  for (uint64_t key = 0; key < kKeys; ++key) ++first[Permutation(kSize, key)(0)];
  const double p = 1.0 / kSize, sigma = std::sqrt(kKeys * p * (1 - p));
  for (uint64_t value = 0; value < kSize; ++value) EXPECT_NEAR(first[value], kKeys * p, 4 * sigma) << value;
}

// A shuffled order has about one fixed point; the identity has only fixed points.
TEST(Permutation, Shuffles) {
  const Permutation order(100000, 7);
  int fixed = 0, rising = 0;
  for (uint64_t i = 0; i + 1 < 100000; ++i) {
    fixed += order(i) == i;
    rising += order(i) < order(i + 1);
  }
  EXPECT_LT(fixed, 12);
  EXPECT_NEAR(rising, 50000, 4 * std::sqrt(100000.0 / 12));  // the standard deviation of a shuffle's ascents
}

TEST(Mixture, NumbersEachSourcesTurnsWithoutAGap) {
  const Mixture mixture({0.2, 5, 1e-3, 0.9});
  std::vector<int64_t> turns(4, 0);
  for (int64_t n = 0; n < 20000; ++n) {
    EXPECT_EQ(mixture.counts(n), turns) << n;
    const Mixture::Turn turn = mixture.at(n);
    EXPECT_EQ(turn.number, turns[turn.source]++) << n;
  }
}

TEST(Mixture, KeepsToTheWeights) {
  const std::vector<double> weights = {0.7, 0.2, 0.1};
  const Mixture mixture(weights);
  for (const int64_t n : {10LL, 1000LL, 123457LL, 1LL << 31}) {
    const std::vector<int64_t> counts = mixture.counts(n);
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(static_cast<double>(counts[i]), weights[i] * static_cast<double>(n), 3) << n;
  }
}

TEST(Mixture, StaysExactForLargeNumbers) {
  const Mixture halves({1, 1});
  const int64_t huge = (int64_t{1} << 62) + 12346;
  EXPECT_EQ(halves.counts(huge), (std::vector<int64_t>{huge / 2, huge / 2}));
}

TEST(Mixture, RefusesBadWeights) {
  EXPECT_THROW(Mixture({}), std::invalid_argument);
  EXPECT_THROW(Mixture({1, 0}), std::invalid_argument);
  EXPECT_THROW(Mixture({NAN}), std::invalid_argument);
  EXPECT_THROW(SampleOrder({1}, {0}, 1), std::invalid_argument);
}

std::vector<int64_t> epoch(const SampleOrder& order, int64_t number, int64_t windows) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < windows; ++i) result.push_back(order.at(number * windows + i).window);
  return result;
}

TEST(SampleOrder, ReshufflesEveryEpochAndSeed) {
  constexpr int64_t kWindows = 257;
  const SampleOrder order({1}, {kWindows}, 3), other({1}, {kWindows}, 4), same({1}, {kWindows}, 3);
  EXPECT_NE(epoch(order, 0, kWindows), epoch(order, 1, kWindows));
  EXPECT_NE(epoch(order, 0, kWindows), epoch(other, 0, kWindows));
  EXPECT_EQ(epoch(order, 5, kWindows), epoch(same, 5, kWindows));
  for (int64_t number = 0; number < 3; ++number) {
    const std::vector<int64_t> windows = epoch(order, number, kWindows);
    EXPECT_EQ(std::set<int64_t>(windows.begin(), windows.end()).size(), kWindows);
  }
}

TEST(SampleOrder, CoversEachSourceOfAMixOnceAnEpochOfItsOwn) {
  const std::vector<int64_t> windows = {13, 50};
  const SampleOrder order({0.6, 0.4}, windows, 9);
  std::map<size_t, std::vector<int64_t>> seen;
  for (int64_t n = 0; n < 1000; ++n) seen[order.at(n).source].push_back(order.at(n).window);
  for (size_t source = 0; source < 2; ++source)
    for (size_t begin = 0; begin + windows[source] <= seen[source].size(); begin += windows[source]) {
      const auto from = seen[source].begin() + static_cast<int64_t>(begin);
      EXPECT_EQ(std::set<int64_t>(from, from + windows[source]).size(), windows[source]);
    }
}

}  // namespace
}  // namespace moelab
