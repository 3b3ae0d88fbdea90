// Ranks that share each weight matrix (parallel.tensor), as threads, beside one rank that has all of it.
// Their products are sums in another order, so their bits cannot be one rank's.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/temporary_folder.h"
#include "tests/train/step/close_to_one_rank.h"
#include "train/predict/dry_run.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

using test::alone;
using test::difference;
using test::Trained;
using test::widths;
using Overrides = std::vector<std::string>;

Settings settings_of(const RankLayout& layout, const Overrides& more) {
  Overrides all = test::kTinyRun;
  for (const auto& [key, count] : {std::pair("data", layout.data), std::pair("tensor", layout.tensor),
                                   std::pair("expert", layout.expert)})
    all.push_back(std::string("parallel.") + key + "=" + std::to_string(count));
  all.insert(all.end(), {"model.vocab=64", "model.kv_heads=4"});
  all.insert(all.end(), more.begin(), more.end());
  return load_settings({.config = "moe-pico", .overrides = all});
}

struct Case {
  RankLayout layout;
  Overrides more;
};

const RankLayout kTwo{.tensor = 2}, kFour{.tensor = 4}, kBoth{.data = 2, .tensor = 2},
    kExperts{.data = 2, .tensor = 2, .expert = 2};

TEST(TensorTraining, IsCloseToOneRankInFp32) {
  const TemporaryFolder drive;
  const std::vector<Case> cases = {
      {kTwo, {}},
      {kTwo, {"model.dispatch=dropless", "model.router=sigmoid", "model.shared_experts=1"}},
      {kTwo, {"model.experts=0", "model.qk_norm=head", "model.tie_embeddings=false", "train.accumulation=2"}},
      {kTwo, {"model.router=expert_choice", "activations.checkpoint=full", "optim.name=lion"}},
      {kTwo, {"model.dispatch=onehot", "activations.pieces=[moe]", "optim.name=sgd"}},
      {kTwo, {"optim.in_backward=true", "optim.clip=0.1", "placement.parameters=host"}},
      {kTwo, {"train.tokens_per_device=96", "train.micro_batch=1", "activations.storage=host"}},
      {kFour, {"model.shared_experts=2", "activations.pieces=[attention, norms]"}},
      {kBoth, {"parallel.zero=1", "placement.optimizer=host"}},
      {kBoth, {"parallel.zero=3", "model.tie_embeddings=false", "activations.checkpoint=full"}},
      {kBoth, {"parallel.reduce=step", "train.accumulation=2"}},
      {kBoth,
       {"parallel.zero=2", "placement.gradients=nvme", "placement.optimizer=nvme",
        "placement.nvme_path=" + drive.string()}},
      {kExperts, {"model.shared_experts=1"}},
      {kExperts, {"parallel.zero=3", "model.dispatch=dropless"}},
  };
  for (const Case& one : cases) {
    for (const int64_t width : {40, 56}) {
      Overrides more = widths(width);
      more.insert(more.end(), one.more.begin(), one.more.end());
      const Settings s = settings_of(one.layout, more);
      SCOPED_TRACE((one.more.empty() ? "" : one.more.front()) + ", width " + std::to_string(width) + ", " +
                   std::to_string(one.layout.ranks()) + " ranks");
      const Trained want = test::train(alone(s), {});
      const std::vector<Trained> got = test::train_on(s);
      const double apart = difference(got, want);
      EXPECT_LE(apart, 5e-6);
      if (!s.optim.in_backward || alone(s).optim.in_backward)
        for (const Trained& rank : got) test::expect_close_reports(rank, want, 1e-5);
      if (HasFailure()) return;
    }
  }
}

// Of weights in 16-bit training: beside float64 an fp32 run's own error is a thousandth of theirs, so that it
// stands for float64. Every token takes all experts, because one that takes another expert for a rounding
// changes much in a small model.
TEST(TensorTraining, IsAsExactAsOneRankInBf16) {
  const Overrides all_experts = {"model.experts=2", "model.experts_per_token=2", "model.dispatch=dropless",
                                 "model.shared_experts=1"};
  const std::vector<Case> cases = {
      {kTwo, all_experts}, {kFour, {"model.experts=0"}}, {kExperts, all_experts}};
  for (const Case& one : cases) {
    for (const int64_t width : {40, 56, 120}) {
      SCOPED_TRACE(one.more.front() + ", width " + std::to_string(width));
      Overrides more = widths(width);
      more.insert(more.end(), one.more.begin(), one.more.end());
      const Trained want = test::train(alone(settings_of(one.layout, more)), {});
      more.push_back("precision.compute=bf16");
      const Settings s = settings_of(one.layout, more);
      const double of_one = difference({test::train(alone(s), {})}, want),
                   of_ranks = difference(test::train_on(s), want);
      EXPECT_GT(of_one, 1e-5);
      EXPECT_LE(of_ranks, 1.1 * of_one);
    }
  }
}

// Elements that a rank of N sends for a sum of n are 2 (N - 1) / N n. In the head each tells three numbers a
// token.
TEST(TensorTraining, SendsWhatTheoryAndTheDryRunSay) {
  for (const RankLayout& layout : {kTwo, kFour, kExperts}) {
    const Settings s = settings_of(layout, {"train.accumulation=2", "parallel.zero=1"});
    const ModelSettings& m = s.model;
    const int64_t N = layout.tensor, T = s.train.micro_batch * s.train.sequence, D = m.d_model,
                  summed = m.layers * (4 * T * D + T * m.experts_per_token) + 2 * T * D,
                  theory = s.train.accumulation * int64_t{sizeof(float)} *
                           (2 * (N - 1) * summed / N + (N - 1) * 3 * T);
    const BatchSource batches = test::random_batches(alone(s));
    std::vector<DryRun> predicted;
    for (int64_t r = 0; r < layout.ranks(); ++r) predicted.push_back(dry_run_of_rank(s, r, {}));
    test::run_ranks(layout, [&](DataRanks ranks) {
      Trainer trainer(s, at::kCPU, batches, ranks);
      trainer.step(0);
      EXPECT_EQ(ranks.tensor->sent_bytes(), theory);
      const DryRun& run = predicted[static_cast<size_t>(ranks.control->rank())];
      EXPECT_EQ(run.sent_sums_bytes, theory);
      EXPECT_EQ(run.sent_bytes, test::sent_bytes(ranks)) << "rank " << ranks.control->rank();
    });
  }
}

}  // namespace
}  // namespace moelab
