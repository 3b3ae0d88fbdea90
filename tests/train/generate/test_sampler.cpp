#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "moe/settings/error.h"
#include "train/generate/sampler.h"

namespace moelab {
namespace {

const std::vector<float> kLogits = {0.5f, -1.0f, 2.0f, 1.5f, -3.0f, 1.9f, 0.0f, -0.2f};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The closed form, computed differently from the sampler: whether a token stays depends on the likelier
// tokens.
std::vector<double> probabilities(const std::vector<float>& logits, double temperature, size_t top_k,
                                  double top_p) {
  std::vector<double> p(logits.size());
  for (size_t i = 0; i < p.size(); ++i) p[i] = std::exp(logits[i] / temperature);
  const auto above = [&](size_t i, size_t j) { return p[j] > p[i] || (p[j] == p[i] && j < i); };
  const auto keep = [&](const auto& stays) {
    std::vector<double> kept(p.size());
    for (size_t i = 0; i < p.size(); ++i) {
      size_t count = 0;
      double mass = 0;
      for (size_t j = 0; j < p.size(); ++j) {
        count += above(i, j);
        mass += above(i, j) ? p[j] : 0;
      }
      kept[i] = stays(count, mass) ? p[i] : 0;
    }
    const double sum = std::accumulate(kept.begin(), kept.end(), 0.0);
    for (size_t i = 0; i < p.size(); ++i) p[i] = kept[i] / sum;
  };
  keep([&](size_t count, double) { return top_k == 0 || count < top_k; });
  keep([&](size_t, double mass) { return mass < top_p; });
  return p;
}

std::vector<int64_t> draw(const SamplingOptions& options, const std::vector<float>& logits, int64_t count) {
  Sampler sampler(options);
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) id = sampler(logits);
  return ids;
}

struct Case {
  double temperature;
  int64_t top_k;
  double top_p;
};

class Distribution : public ::testing::TestWithParam<Case> {};

// Pearson's chi-square over the tokens that may be drawn. Its upper 10^-4 quantile is bounded by the normal
// approximation of Wilson and Hilferty, d (1 - 2/(9d) + 3.719 sqrt(2/(9d)))^3.
TEST_P(Distribution, IsTheClosedForm) {
  const auto [temperature, top_k, top_p] = GetParam();
  constexpr int64_t draws = 40000;
  const std::vector<double> want = probabilities(kLogits, temperature, static_cast<size_t>(top_k), top_p);
  std::vector<double> counts(kLogits.size());
  for (const int64_t id : draw({temperature, top_k, top_p, 7}, kLogits, draws)) ++counts[id];
  double chi_square = 0, degrees = -1;
  for (size_t i = 0; i < want.size(); ++i) {
    const double expected = want[i] * draws;
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i;
    } else {
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
      ++degrees;
    }
  }
  if (degrees == 0) return;  // one token, always drawn
  const double part = 2 / (9 * degrees);
  EXPECT_LT(chi_square, degrees * std::pow(1 - part + 3.719 * std::sqrt(part), 3)) << degrees << " degrees";
}

INSTANTIATE_TEST_SUITE_P(Options, Distribution,
                         ::testing::Values(Case{1, 0, 1}, Case{0.5, 0, 1}, Case{3, 0, 1}, Case{1, 3, 1},
                                           Case{1, 1, 1}, Case{1, 8, 1}, Case{1, 1000, 1}, Case{1, 0, 0.6},
                                           Case{1, 0, 0.95}, Case{1, 0, 1e-9}, Case{2, 4, 0.8},
                                           Case{0.7, 6, 0.9}));

TEST(Sampler, TemperatureZeroIsTheLikeliestAndTheLowestOfEquals) {
  EXPECT_EQ(draw({0}, kLogits, 3), std::vector<int64_t>(3, 2));
  EXPECT_EQ(draw({0}, {1, 4, 4, 4}, 1), std::vector<int64_t>{1});
  EXPECT_EQ(draw({1e-6}, kLogits, 50), std::vector<int64_t>(50, 2));
}

// Of equal logits the lower ids stay, at the limits of both top_k and top_p.
TEST(Sampler, TiesAreCutByTheId) {
  const std::vector<float> equal(8, 1.25f);
  const auto drawn = [&](const SamplingOptions& options) {
    std::vector<bool> seen(equal.size());
    for (const int64_t id : draw(options, equal, 500)) seen[id] = true;
    return seen;
  };
  using Seen = std::vector<bool>;
  EXPECT_EQ(drawn({1, 3, 1}), (Seen{true, true, true, false, false, false, false, false}));
  EXPECT_EQ(drawn({1, 0, 0.25}), (Seen{true, true, false, false, false, false, false, false}));
  EXPECT_EQ(drawn({1, 0, 0.26}), (Seen{true, true, true, false, false, false, false, false}));
  EXPECT_EQ(drawn({1, 0, 1}), Seen(8, true));
  EXPECT_EQ(drawn({1, 4, 0.5}), (Seen{true, true, false, false, false, false, false, false}));
}

TEST(Sampler, SeedAndStreamDecideAlone) {
  const auto ids = [](uint64_t seed, uint64_t stream) { return draw({1, 0, 1, seed, stream}, kLogits, 200); };
  EXPECT_EQ(ids(3, 0), ids(3, 0));
  EXPECT_NE(ids(3, 0), ids(4, 0));
  EXPECT_NE(ids(3, 0), ids(3, 1));
  EXPECT_NE(ids(3, 1), ids(4, 0));
  EXPECT_NE(ids(3, 0), ids(3 + (uint64_t{1} << 40), 0));  // no bit of the seed is lost
}

TEST(Sampler, NeverDrawsWhatIsImpossible) {
  for (const int64_t id : draw({5}, {-kInfinity, 0, -kInfinity, 0.1f}, 500)) EXPECT_TRUE(id == 1 || id == 3);
  EXPECT_EQ(draw({1}, {0}, 3), std::vector<int64_t>(3, 0));
  EXPECT_EQ(draw({1}, {-3e38f, 3e38f}, 3), std::vector<int64_t>(3, 1));
}

TEST(Sampler, RefusesBadOptionsAndLogits) {
  const double nan = std::nan("");
  for (const SamplingOptions& bad :
       {SamplingOptions{-1}, SamplingOptions{nan}, SamplingOptions{kInfinity}, SamplingOptions{1, -1},
        SamplingOptions{1, 0, 0}, SamplingOptions{1, 0, 1.5}, SamplingOptions{1, 0, nan}}) {
    EXPECT_THROW(Sampler{bad}, UserError);
  }
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_THROW(draw({temperature}, {0, std::nanf(""), 1}, 1), UserError);
    EXPECT_THROW(draw({temperature}, {0, kInfinity}, 1), UserError);
    EXPECT_THROW(draw({temperature}, {-kInfinity, -kInfinity}, 1), UserError);
  }
}

}  // namespace
}  // namespace moelab
