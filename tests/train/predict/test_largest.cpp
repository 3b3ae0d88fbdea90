#include "train/predict/largest.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace moelab {
namespace {

using Share = std::function<std::optional<double>(int64_t)>;

struct Answer {
  int64_t found, calls;
};

Answer asked(int64_t guess, int64_t most, const Share& share) {
  int64_t calls = 0;
  const int64_t found = largest_fitting(guess, most, [&](int64_t count) {
    ++calls;
    EXPECT_TRUE(1 <= count && count <= most) << count;
    return share(count);
  });
  return {found, calls};
}

TEST(LargestFitting, IsFoundFromAnyGuess) {
  for (const int64_t most : {1, 2, 10, 1000}) {
    for (int64_t limit = 0; limit <= most; limit += 1 + most / 20) {
      const std::vector<Share> shares = {
          [&](int64_t count) { return static_cast<double>(count) / (static_cast<double>(limit) + 0.5); },
          [&](int64_t count) { return count <= limit ? 0.3 : 1e9; },
          [&](int64_t count) { return count <= limit ? 1.0 : 1 + 1e-12; },
          [&](int64_t count) { return count <= limit ? std::optional<double>(0.9) : std::nullopt; }};
      for (const int64_t guess : {int64_t{-5}, int64_t{1}, limit - 1, limit, limit + 1, most / 2, most + 7})
        for (size_t i = 0; i < shares.size(); ++i)
          EXPECT_EQ(asked(guess, most, shares[i]).found, limit)
              << "of " << most << " from " << guess << " by share " << i;
    }
  }
}

TEST(LargestFitting, StraightNeedsCostFewQuestions) {
  for (const double base : {0.0, 0.3, 0.9})
    for (const int64_t guess : {1, 300, 499, 500, 501, 4000}) {
      const Answer answer = asked(
          guess, 4096, [&](int64_t count) { return base + (1 - base) * static_cast<double>(count) / 500.5; });
      EXPECT_EQ(answer.found, 500);
      EXPECT_LE(answer.calls, guess == 4000 ? 9 : 6) << guess << " " << base;
    }
}

// Phases of a step peak in turn, and an allocator rounds up.
TEST(LargestFitting, BentAndSteppedNeedsCostFewQuestions) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> part(0, 1);
  int64_t all = 0, most_calls = 0;
  constexpr int64_t kCases = 2000, kMost = 1 << 16;
  for (int64_t i = 0; i < kCases; ++i) {
    const double limit = std::exp2(16.5 * part(random)), base = part(random), bend = limit * 2 * part(random),
                 steeper = 1 + 4 * part(random), step = 0.002 * part(random);
    const auto needs = [&](double count) {
      const double smooth = base * limit + count + (steeper - 1) * std::max(0.0, count - bend);
      return std::ceil(smooth / (limit * step)) * (limit * step);
    };
    const double room = needs(limit);
    int64_t expected = 0;
    for (int64_t bit = kMost; bit > 0; bit /= 2)
      if (expected + bit <= kMost && needs(static_cast<double>(expected + bit)) <= room) expected += bit;
    const Answer answer =
        asked(1, kMost, [&](int64_t count) { return needs(static_cast<double>(count)) / room; });
    EXPECT_EQ(answer.found, expected);
    all += answer.calls;
    most_calls = std::max(most_calls, answer.calls);
  }
  EXPECT_LE(static_cast<double>(all) / kCases, 10);
  EXPECT_LE(most_calls, 50);  // bisected, half of them
}

}  // namespace
}  // namespace moelab
