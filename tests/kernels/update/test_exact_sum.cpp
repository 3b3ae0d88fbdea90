#include "kernels/update/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace moelab {
namespace {

double sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double x : values) sum.add(x);
  return sum.value();
}

// Doubles of all magnitudes whose squares are doubles.
std::vector<double> random_values(int64_t count, int lowest, int highest) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> mantissa(1, 2);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(std::ldexp(mantissa(random), lowest + static_cast<int>(random() % (highest - lowest))));
  return values;
}

TEST(ExactSum, OneNumberIsItself) {
  EXPECT_EQ(ExactSum().value(), 0);
  using Limits = std::numeric_limits<double>;
  for (const double x : {0.0, 1.0, 0.1, 3e-200, 1e300, Limits::min(), Limits::max(), 1.5 * Limits::min()})
    EXPECT_EQ(sum_of({x}), x);
  EXPECT_EQ(sum_of({Limits::denorm_min()}), Limits::denorm_min());
  for (const double x : random_values(1000, -1000, 1000)) EXPECT_EQ(sum_of({x}), x);
}

// Integers below 2^64 whose sum needs more than the 53 bits of a double.
TEST(ExactSum, IsRoundedOnceToNearestEven) {
  const double big = std::ldexp(1, 53);
  EXPECT_EQ(sum_of({big, 1}), big);              // a tie goes to the even one
  EXPECT_EQ(sum_of({big, 1, 1}), big + 2);       // where one addition after another loses both
  EXPECT_EQ(sum_of({big + 2, 1}), big + 4);      // a tie
  EXPECT_EQ(sum_of({big, 1, 1e-300}), big + 2);  // past the tie
  std::vector<double> many(1000000, std::ldexp(1, -40));
  many.push_back(std::ldexp(1, 40));
  EXPECT_EQ(sum_of(many), std::ldexp(1, 40) + 1e6 * std::ldexp(1, -40));
}

TEST(ExactSum, OrderAndGroupingChangeNothing) {
  std::vector<double> values = random_values(5000, -300, 300);
  const double want = sum_of(values);
  double rounded = 0;
  for (const double x : values) rounded += x;
  EXPECT_NEAR(want / rounded, 1, 1e-12);
  std::mt19937_64 random(3);
  for (const size_t parts : {1, 2, 7}) {
    std::shuffle(values.begin(), values.end(), random);
    std::vector<ExactSum> sums(parts);
    for (size_t i = 0; i < values.size(); ++i) sums[i % parts].add(values[i]);
    ExactSum all;
    for (ExactSum& sum : sums) all.add(sum.words());
    EXPECT_EQ(all.value(), want) << parts;
  }
}

TEST(ExactSum, WordsOfEqualSumsAreEqual) {
  ExactSum a, b;
  for (int i = 0; i < 1000; ++i) a.add(0.75);
  b.add(750);
  EXPECT_TRUE(std::ranges::equal(a.words(), b.words()));
  b.add(std::ldexp(1, -1074));
  EXPECT_FALSE(std::ranges::equal(a.words(), b.words()));
}

TEST(ExactSum, PastTheLargestDoubleIsInfinite) {
  constexpr double kMax = std::numeric_limits<double>::max(),
                   kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sum_of({kMax, kMax}), kInfinity);
  EXPECT_EQ(sum_of({1, kInfinity}), kInfinity);
  EXPECT_TRUE(std::isnan(sum_of({1, kInfinity, std::nan("")})));
  ExactSum sum, other;
  other.add(kInfinity);
  sum.add(other.words());
  EXPECT_EQ(sum.value(), kInfinity);
}

}  // namespace
}  // namespace moelab
