#include "train/generate/batch.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "kernels/memory/ledger.h"
#include "tests/moe/logits_tolerance.h"
#include "tests/train/generate/texts.h"
#include "tests/user_error.h"

namespace moelab {
namespace {

using test::kPositions;

// A slightly trained model, so that its texts are not all alike.
class GenerateBatch : public ::testing::TestWithParam<AttentionKernel> {
 protected:
  GenerateBatch()
      : settings_(test::settings_for_texts(GetParam())),
        trainer_(settings_, at::kCPU, test::random_batches(settings_)) {
    for (int64_t step = 0; step < 4; ++step) trainer_.step(step);
  }

  std::vector<Generated> batch(const GenerateOptions& options, const BatchLimits& limits) {
    return generate_batch(trainer_.model(), direct_, prompts_, options, limits);
  }
  // The texts generated one at a time, as `moelab generate` does.
  std::vector<std::vector<int64_t>> alone(const GenerateOptions& options) {
    std::vector<std::vector<int64_t>> texts;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      KvCache cache(settings_.model, 1, kPositions, at::kFloat, at::kCPU);
      GenerateOptions own = options;
      own.sampling.stream += i;
      texts.push_back(generate(trainer_.model(), cache, prompts_[i], own).tokens);
    }
    return texts;
  }
  static std::vector<std::vector<int64_t>> tokens_of(const std::vector<Generated>& texts) {
    std::vector<std::vector<int64_t>> tokens;
    for (const Generated& text : texts) tokens.push_back(text.tokens);
    return tokens;
  }

  Settings settings_;
  Trainer trainer_;
  DirectRunner direct_;
  const std::vector<std::vector<int64_t>> prompts_ = test::prompts();
};

// Greedy and sampled; all at once, with waiting texts, and with prompts read in parts: the tokens are the
// same as for each text alone.
TEST_P(GenerateBatch, TextsAreThoseOfEachAlone) {
  for (const double temperature : {0.0, 1.0}) {
    const GenerateOptions options{{temperature}, 20, {}};
    const auto want = alone(options);
    for (const auto& [sequences, tokens] : {std::pair{5, 100}, {2, 100}, {1, 100}, {3, 4}, {5, 1}}) {
      const auto got = batch(options, {sequences, kPositions, tokens});
      EXPECT_EQ(tokens_of(got), want) << sequences << " texts, " << tokens << " tokens a pass";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, GenerateBatch,
                         ::testing::Values(AttentionKernel::flash, AttentionKernel::sliding_window,
                                           AttentionKernel::block_sparse),
                         [](const auto& info) {
                           return std::string(enum_names(info.param)[size_t(info.param)]);
                         });

using GenerateBatchFlash = GenerateBatch;
INSTANTIATE_TEST_SUITE_P(Once, GenerateBatchFlash, ::testing::Values(AttentionKernel::flash));

TEST_P(GenerateBatchFlash, EndsAsOneTextDoes) {
  GenerateOptions options{{1.0}, 25, {}};
  const auto whole = tokens_of(batch(options, {5, kPositions, 100}));
  for (const auto& text : whole) EXPECT_EQ(text.size(), std::min<size_t>(25, text.size()));
  EXPECT_EQ(whole[2].size(), 24u);  // 17 and 23 fill 40 positions, and the last token needs none
  options.end_of_text = whole[0][7];
  const auto ended = batch(options, {2, kPositions, 100});
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto end = std::find(whole[i].begin(), whole[i].end(), *options.end_of_text);
    EXPECT_EQ(ended[i].tokens, std::vector(whole[i].begin(), end));
    EXPECT_EQ(ended[i].ending, end != whole[i].end()  ? Ending::end_of_text
                               : whole[i].size() < 25 ? Ending::positions
                                                      : Ending::max_tokens);
  }
}

TEST_P(GenerateBatchFlash, HoldsTheKeysAndValuesItWasGivenAndLeavesNothing) {
  install_allocators();
  for (const int64_t sequences : {1, 3}) {
    const int64_t before = cpu_ledger().allocated();
    cpu_ledger().reset_peaks();
    batch({{0}, 10, {}}, {sequences, kPositions, 100});
    EXPECT_EQ(cpu_ledger().by_kind_at_peak()[static_cast<size_t>(Kind::kv_cache)],
              KvCache::bytes(settings_.model, sequences, kPositions, at::kFloat));
    EXPECT_EQ(cpu_ledger().allocated(), before);
  }
}

TEST_P(GenerateBatchFlash, LeavesLibTorchsGeneratorAndTheRoutingCountsAlone) {
  const at::Generator& generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = generator.get_state();
  std::vector<at::Tensor> loads;
  for (const RoutingStats& stats : trainer_.model().routing_stats()) loads.push_back(stats.load_E.clone());
  batch({{1.0}, 10, {}}, {2, kPositions, 100});
  EXPECT_TRUE(at::equal(generator.get_state(), state));
  for (size_t i = 0; i < loads.size(); ++i)
    EXPECT_TRUE(at::equal(trainer_.model().routing_stats()[i].load_E, loads[i]));
}

TEST_P(GenerateBatchFlash, RefusesPromptsWithoutRoomAndStopsWhenTold) {
  EXPECT_NE(user_error([&] { batch({}, {2, 16, 100}); }).find("17 tokens"), std::string::npos);
  int passes = 0;
  EXPECT_TRUE(generate_batch(trainer_.model(), direct_, prompts_, {}, {2, kPositions, 100}, [&] {
                return ++passes == 3;
              }).empty());
  EXPECT_EQ(passes, 3);
}

// The logits of a pass over several texts at different positions, compared with each text's own pass.
TEST_P(GenerateBatchFlash, LogitsAreThoseOfEachAlone) {
  Transformer& model = trainer_.model();
  const auto cache = [&] { return KvCache(settings_.model, 1, kPositions, at::kFloat, at::kCPU); };
  const auto ids = [](const std::vector<int64_t>& tokens) {
    return at::tensor(tokens, at::kLong).unsqueeze(0);
  };
  std::vector<KvCache> together, apart;
  for (size_t i = 0; i < 3; ++i) together.push_back(cache()), apart.push_back(cache());
  const test::Tolerance allowed = test::logits_tolerance(settings_.model, kPositions, at::kFloat);
  // a prompt, a single token and a part of a prompt together; then each continues
  const std::vector<std::vector<std::vector<int64_t>>> passes = {
      {{17, 3, 42, 8, 8}, {5}, {1, 2, 3}}, {{9}, {7}, {4, 5, 6, 7}}, {{11}, {12, 13}, {8}}};
  for (const auto& pass : passes) {
    std::vector<int64_t> all;
    std::vector<CachedText> texts;
    for (size_t i = 0; i < 3; ++i) {
      all.insert(all.end(), pass[i].begin(), pass[i].end());
      texts.push_back({&together[i], static_cast<int64_t>(pass[i].size())});
    }
    const at::Tensor got = model.next_logits(ids(all), texts, direct_);
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor want = model.next_logits(ids(pass[i]), apart[i], direct_);
      EXPECT_TRUE(test::close_to(got[static_cast<int64_t>(i)], want[0], allowed));
    }
  }
}

}  // namespace
}  // namespace moelab
