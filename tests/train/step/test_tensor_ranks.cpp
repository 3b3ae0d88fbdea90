// Ranks that share each weight matrix (parallel.tensor), as threads, beside one rank that has all of it.
// Their products are sums in another order, so their bits cannot be one rank's.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/temporary_folder.h"
#include "tests/train/step/beside_one_rank.h"
#include "tests/train/step/data_ranks.h"
#include "train/parallel/layout.h"
#include "train/predict/dry_run.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

using Overrides = std::vector<std::string>;

constexpr int64_t kStepsHere = 5;

// At some widths the CPU's products split a sum as two ranks do, so one width proves little.
Overrides widths(int64_t width) {
  return {"model.d_model=" + std::to_string(width), "model.d_expert=" + std::to_string(width + 8)};
}

Settings settings_of(const RankLayout& layout, const Overrides& more) {
  Overrides all = test::kTinyRun;
  for (const auto& [key, count] : {std::pair("data", layout.data), std::pair("tensor", layout.tensor),
                                   std::pair("expert", layout.expert)})
    all.push_back(std::string("parallel.") + key + "=" + std::to_string(count));
  all.insert(all.end(), {"model.vocab=64", "model.kv_heads=4"});
  all.insert(all.end(), more.begin(), more.end());
  return load_settings({.config = "moe-pico", .overrides = all});
}

// The same run on one rank.
Settings alone(const Settings& s) {
  Settings one = s;
  one.parallel = {};
  one.train.accumulation *= std::max<int64_t>(1, s.parallel.data);
  one.optim.in_backward = s.optim.in_backward && one.train.accumulation == 1;
  return one;
}

struct Trained {
  std::vector<StepReport> steps;
  double held_out = 0;
  std::vector<TensorEntry> weights;
};

Trained train(const Settings& s, DataRanks ranks) {
  const BatchSource batches = test::random_batches(alone(s));
  Trainer trainer(s, at::kCPU, batches, ranks);
  Trained trained;
  for (int64_t step = 0; step < kStepsHere; ++step) trained.steps.push_back(trainer.step(step));
  trained.held_out = trainer.evaluate([&](int64_t b) { return batches(100 + b, 0, 2); }, 3);
  trained.weights = trainer.weights();
  for (TensorEntry& entry : trained.weights) entry.tensor = entry.tensor.clone();
  return trained;
}

std::vector<Trained> train_on(const RankLayout& layout, const Settings& s) {
  std::vector<Trained> trained(layout.ranks());
  test::run_ranks(layout, [&](DataRanks ranks) { trained[ranks.control->rank()] = train(s, ranks); });
  return trained;
}

// Relative Frobenius norm of the difference, of all weights together. Each element counts once.
double difference(const std::vector<Trained>& ranks, const Trained& whole) {
  double apart = 0, size = 0;
  for (const Trained& rank : ranks) {
    for (size_t i = 0; i < rank.weights.size(); ++i) {
      const TensorEntry& entry = rank.weights[i];
      if (entry.elsewhere) continue;
      const at::Tensor want = test::own_part(whole.weights[i].tensor, entry).to(at::kDouble);
      apart += entry.tensor.to(at::kDouble).sub(want).square().sum().item<double>();
      size += want.square().sum().item<double>();
    }
  }
  double all = 0;
  for (const TensorEntry& entry : whole.weights)
    all += entry.tensor.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(size / all, 1, 1e-5) << "the ranks do not have every weight once";
  return std::sqrt(apart / all);
}

void expect_close_reports(const Trained& got, const Trained& want, double bound, const std::string& where) {
  for (size_t i = 0; i < want.steps.size(); ++i) {
    const StepReport &a = got.steps[i], &b = want.steps[i];
    EXPECT_NEAR(a.loss, b.loss, bound * b.loss) << where;
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 10 * bound * b.gradient_norm) << where;
    EXPECT_EQ(a.tokens, b.tokens) << where;
    EXPECT_EQ(a.skipped, b.skipped) << where;
  }
  EXPECT_NEAR(got.held_out, want.held_out, bound * want.held_out) << where;
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
      const std::string where = (one.more.empty() ? "" : one.more.front()) + ", width " +
                                std::to_string(width) + ", " + std::to_string(one.layout.ranks()) + " ranks";
      SCOPED_TRACE(where);
      const Trained want = train(alone(s), {});
      const std::vector<Trained> got = train_on(one.layout, s);
      const double apart = difference(got, want);
      EXPECT_LE(apart, 5e-6);
      if (!s.optim.in_backward || alone(s).optim.in_backward)
        for (const Trained& rank : got) expect_close_reports(rank, want, 1e-5, where);
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
      const Trained want = train(alone(settings_of(one.layout, more)), {});
      more.push_back("precision.compute=bf16");
      const Settings s = settings_of(one.layout, more);
      const double of_one = difference({train(alone(s), {})}, want),
                   of_ranks = difference(train_on(one.layout, s), want);
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
      int64_t sent = 0;
      for (const Communicator* use :
           {ranks.gradients, ranks.weights, ranks.updates, ranks.experts, ranks.expert_gradients,
            ranks.expert_weights, ranks.expert_updates, ranks.tensor})
        sent += use->sent_bytes();
      EXPECT_EQ(run.sent_bytes, sent) << "rank " << ranks.control->rank();
    });
  }
}

}  // namespace
}  // namespace moelab
