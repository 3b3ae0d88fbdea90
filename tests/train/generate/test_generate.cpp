#include "train/generate/generate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "moe/settings/error.h"
#include "tests/moe/logits_tolerance.h"
#include "tests/train/step/random_run.h"

namespace moelab {
namespace {

constexpr int64_t kPositions = 40;

// A few training steps on random tokens, with a capacity so small that tokens are dropped.
class Generate : public ::testing::Test {
 protected:
  static Settings settings() {
    Settings s = test::small_settings();
    s.model.capacity_factor = 0.5;
    s.optim.lr = 1e-2;
    return s;
  }

  Generate() : settings_(settings()), trainer_(settings_, at::kCPU, test::random_batches(settings_)) {
    for (int64_t step = 0; step < 4; ++step) trainer_.step(step);
  }

  Transformer& model() { return trainer_.model(); }
  KvCache cache(int64_t positions = kPositions) const {
    return KvCache(settings_.model, 1, positions, at::kFloat, at::kCPU);
  }
  std::vector<int64_t> tokens(const GenerateOptions& options, int64_t positions = kPositions) {
    KvCache fresh = cache(positions);
    return generate(model(), fresh, prompt_, options).tokens;
  }
  // The logits (V) after these ids, by a forward pass without cache.
  at::Tensor logits_after(const std::vector<int64_t>& ids) {
    at::NoGradGuard no_grad;
    DirectRunner direct;
    return model().logits(at::tensor(ids, at::kLong).unsqueeze(0), direct)[0][-1];
  }

  Settings settings_;
  Trainer trainer_;
  const std::vector<int64_t> prompt_ = {17, 3, 42, 8, 8};
};

TEST_F(Generate, GreedyTokensAreTheUncachedOnesWhereTheBestIsClear) {
  GenerateOptions greedy;
  greedy.sampling.temperature = 0;
  greedy.max_tokens = 30;
  const std::vector<int64_t> got = tokens(greedy);
  ASSERT_EQ(got.size(), 30u);
  const test::Tolerance allowed = test::logits_tolerance(settings_.model, kPositions, at::kFloat);
  std::vector<int64_t> text = prompt_;
  int clear = 0;
  for (const int64_t id : got) {
    const at::Tensor logits = logits_after(text);
    const auto [best, ids] = logits.topk(2);
    const double rms = logits.norm().item<double>() / std::sqrt(static_cast<double>(logits.numel()));
    if ((best[0] - best[1]).item<double>() > 2 * allowed.worst_in_rms * rms) {
      EXPECT_EQ(id, ids[0].item<int64_t>()) << "token " << text.size() - prompt_.size();
      ++clear;
    }
    text.push_back(id);
  }
  EXPECT_GE(clear, 25);
}

TEST_F(Generate, TheSameSeedWritesTheSameAndOnlyThat) {
  GenerateOptions options{{1.0, 0, 1.0, 5}, 30, {}};
  const std::vector<int64_t> first = tokens(options);
  EXPECT_EQ(first, tokens(options));
  options.sampling.seed = 6;
  EXPECT_NE(first, tokens(options));
  options.sampling = {1.0, 0, 1.0, 5, 1};
  EXPECT_NE(first, tokens(options));
}

TEST_F(Generate, GreedyThreeWays) {
  const std::vector<int64_t> greedy = tokens({{0}, 20, {}});
  EXPECT_EQ(greedy, tokens({{1.0, 1}, 20, {}}));
  EXPECT_EQ(greedy, tokens({{1.0, 0, 1e-6}, 20, {}}));
}

TEST_F(Generate, ShowsEachTokenOnceAndCountsItsSteps) {
  std::vector<int64_t> shown;
  KvCache used = cache();
  const auto show = [&](int64_t id) { shown.push_back(id); };
  const Generated first = generate(model(), used, prompt_, {{1.0}, 12, {}}, show);
  EXPECT_EQ(shown, first.tokens);
  EXPECT_EQ(first.tokens.size(), 12u);
  EXPECT_EQ(first.steps, 11);
  EXPECT_EQ(first.ending, Ending::max_tokens);
  EXPECT_EQ(used.length(), static_cast<int64_t>(prompt_.size()) + 11);
  EXPECT_EQ(generate(model(), used, prompt_, {{1.0}, 12, {}}).tokens, first.tokens);  // cleared first
}

TEST_F(Generate, EndsWithTheTextAndLeavesItsEndOut) {
  const std::vector<int64_t> whole = tokens({{1.0}, 30, {}});
  const int64_t end = whole[9];
  const auto first = std::find(whole.begin(), whole.end(), end);
  KvCache fresh = cache();
  const Generated got = generate(model(), fresh, prompt_, {{1.0}, 30, end});
  EXPECT_EQ(got.tokens, std::vector<int64_t>(whole.begin(), first));
  EXPECT_EQ(got.ending, Ending::end_of_text);
}

// The last token needs no position, because nothing follows it.
TEST_F(Generate, EndsWhereTheCacheIsFull) {
  const auto written = [&](int64_t positions) {
    KvCache small = cache(positions);
    const Generated got = generate(model(), small, prompt_, {{0}, 30, {}});
    EXPECT_EQ(got.ending, Ending::positions);
    return got.tokens;
  };
  const std::vector<int64_t> whole = tokens({{0}, 30, {}});
  EXPECT_EQ(written(5), std::vector<int64_t>(whole.begin(), whole.begin() + 1));
  EXPECT_EQ(written(9), std::vector<int64_t>(whole.begin(), whole.begin() + 5));
  EXPECT_EQ(tokens({{0}, 30, {}}, 34), whole);
}

TEST_F(Generate, RefusesPromptsWithoutRoomOrTokens) {
  KvCache small = cache(4);
  EXPECT_THROW(generate(model(), small, prompt_, {}), UserError);
  EXPECT_THROW(generate(model(), small, {}, {}), UserError);
}

}  // namespace
}  // namespace moelab
