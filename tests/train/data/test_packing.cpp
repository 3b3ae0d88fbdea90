#include "train/data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>

namespace moelab {
namespace {

std::vector<int64_t> lengths(int64_t count, int64_t longest, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(1 + static_cast<int64_t>(random() % longest));
  return result;
}

using Key = std::pair<size_t, int64_t>;

std::vector<Key> keys(const PackedOrder::Row& row) {
  std::vector<Key> result;
  for (const Sample& s : row.passages) result.emplace_back(s.source, s.window);
  return result;
}

TEST(PackedOrder, EachPassageOnceAnEpochAndNoRowOverfull) {
  const std::vector<int64_t> all = lengths(1000, 100);
  const PackedOrder order({{1, all}}, 256, 5000, 7);
  int64_t n = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::map<Key, int> seen;
    while (seen.size() < all.size()) {
      const PackedOrder::Row row = order.row(n);
      int64_t filled = 0;
      for (const Sample& s : row.passages) {
        EXPECT_EQ(++seen[Key(s.source, s.window)], 1);
        filled += all[s.window];
      }
      EXPECT_EQ(row.filled, filled);
      EXPECT_LE(filled, 256);
      EXPECT_EQ(order.filled(n, 1), filled);
      ++n;
    }
  }
}

// No packing needs fewer rows than the tokens fill; best fit stays within the bound of 11/9 (Johnson 1973).
TEST(PackedOrder, FillsRowsWell) {
  for (const int64_t longest : {20, 100, 200, 256}) {
    const std::vector<int64_t> all = lengths(4000, longest);
    const PackedOrder order({{1, all}}, 256, 4000, 1);
    int64_t tokens = 0, rows = 0;
    for (const int64_t length : all) tokens += length;
    for (int64_t left = tokens; left > 0; ++rows) left -= order.row(rows).filled;
    const int64_t least = (tokens + 255) / 256;
    EXPECT_LE(rows, least * 11 / 9 + 1) << longest;
    // well packed: plain concatenation in the documents' order would leave half a document per row
    if (longest <= 100) {
      EXPECT_LE(rows, least + 1) << longest;
    }
  }
}

TEST(PackedOrder, LargerBuffersFillBetter) {
  const std::vector<int64_t> all = lengths(4000, 200);
  const auto filled = [&](int64_t buffer) { return PackedOrder({{1, all}}, 256, buffer, 1).filled(0, 1500); };
  EXPECT_LT(filled(4), filled(64));
  EXPECT_LT(filled(64), filled(4000));
}

TEST(PackedOrder, IsAFunctionOfSeedAndRow) {
  const std::vector<int64_t> all = lengths(500, 90);
  const PackedOrder a({{1, all}}, 200, 64, 5), b({{1, all}}, 200, 64, 5), other({{1, all}}, 200, 64, 6);
  std::vector<std::vector<Key>> forward, backward;
  for (int64_t n = 0; n < 400; ++n) forward.push_back(keys(a.row(n)));
  for (int64_t n = 399; n >= 0; --n) backward.push_back(keys(b.row(n)));
  std::ranges::reverse(backward);
  EXPECT_EQ(forward, backward);
  EXPECT_NE(keys(other.row(0)), forward[0]);
  EXPECT_THROW(a.row(-1), std::invalid_argument);
}

TEST(PackedOrder, SeveralThreadsGetTheSameRows) {
  const std::vector<int64_t> all = lengths(500, 90);
  const PackedOrder one({{1, all}}, 200, 16, 5), shared({{1, all}}, 200, 16, 5);
  std::vector<std::vector<Key>> got(300);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t n = t; n < 300; n += 4) got[n] = keys(shared.row(n));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int64_t n = 0; n < 300; ++n) EXPECT_EQ(got[n], keys(one.row(n))) << n;
}

// Otherwise rows of long passages would come first, and the longest would be learned before the shortest.
TEST(PackedOrder, RowsOfABufferAreShuffled) {
  const std::vector<int64_t> all = lengths(2000, 100);
  const PackedOrder order({{1, all}}, 100, 2000, 3);
  double first = 0, second = 0;
  for (int64_t n = 0; n < 400; ++n) first += static_cast<double>(order.row(n).passages.size());
  for (int64_t n = 400; n < 800; ++n) second += static_cast<double>(order.row(n).passages.size());
  EXPECT_NEAR(first / second, 1, 0.15);
}

TEST(PackedOrder, AMixKeepsItsShareOfTokens) {
  const std::vector<int64_t> longer(300, 80), shorter(3000, 8);
  const PackedOrder order({{0.7, longer}, {0.3, shorter}}, 200, 256, 1);
  double tokens[2] = {0, 0};
  for (int64_t n = 0; n < 500; ++n) {
    for (const Sample& s : order.row(n).passages) tokens[s.source] += s.source == 0 ? 80 : 8;
  }
  EXPECT_NEAR(tokens[0] / (tokens[0] + tokens[1]), 0.7, 0.02);
}

TEST(PackedOrder, RefusesWhatFitsNoRow) {
  EXPECT_THROW(PackedOrder({{1, {5, 11}}}, 10, 4, 1), std::invalid_argument);
  EXPECT_THROW(PackedOrder({{1, {0}}}, 10, 4, 1), std::invalid_argument);
  EXPECT_THROW(PackedOrder({{1, {}}}, 10, 4, 1), std::invalid_argument);
  EXPECT_THROW(PackedOrder({{1, {5}}}, 10, 0, 1), std::invalid_argument);
}

}  // namespace
}  // namespace moelab
