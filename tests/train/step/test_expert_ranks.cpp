// Ranks that share the experts (parallel.expert), as threads, beside one rank that has all of them. With
// parallel.zero above 0: test_zero.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/moe/dispatch.h"
#include "tests/temporary_folder.h"
#include "tests/train/step/close_to_one_rank.h"
#include "train/predict/dry_run.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

using Overrides = std::vector<std::string>;

Settings settings_of(int64_t ranks, int64_t experts, const Overrides& more) {
  Overrides all = test::kTinyRun;
  all.push_back("parallel.data=" + std::to_string(ranks));
  all.push_back("parallel.expert=" + std::to_string(experts));
  all.insert(all.end(), more.begin(), more.end());
  return load_settings({.config = "moe-pico", .overrides = all});
}

struct Layout {
  int64_t ranks, experts;
};

TEST(ExpertRanks, HaveTheBitsOfOneRank) {
  const TemporaryFolder drive;
  const std::string drive_setting = "placement.nvme_path=" + drive.string();
  const std::vector<Overrides> cases = {
      {},
      {"precision.compute=bf16", "model.shared_experts=1", "train.accumulation=2"},
      {"precision.compute=bf16", "model.dispatch=dropless", "model.router=sigmoid"},
      {"model.router=expert_choice", "activations.checkpoint=full", "placement.optimizer=host"},
      {"precision.compute=bf16", "activations.pieces=[moe]", "placement.gradients=nvme", drive_setting,
       "train.accumulation=2"},
      {"model.shared_experts=2", "placement.parameters=host", "optim.in_backward=true", "optim.clip=0"},
      {"precision.compute=bf16", "train.tokens_per_device=96", "train.micro_batch=1",
       "activations.storage=host"},
      {"precision.compute=fp16", "parallel.reduce=step", "placement.gradients=host"},
  };
  for (const Overrides& more : cases) {
    for (const Layout& at : {Layout{2, 2}, Layout{4, 2}, Layout{4, 4}}) {
      const std::string where = std::to_string(at.ranks) + " ranks, experts over " +
                                std::to_string(at.experts) + ": " + (more.empty() ? "" : more.front());
      test::expect_bits_of_one_rank(settings_of(at.ranks, at.experts, more), where);
      if (HasFailure()) return;
    }
  }
}

// LibTorch's fp32 products of groups of any size depend on where a row lies.
TEST(ExpertRanks, DroplessInFp32IsClose) {
  const Settings s = settings_of(4, 2, {"model.dispatch=dropless"});
  EXPECT_LE(test::difference(test::train_on(s), test::train(test::alone(s), {})), 5e-6);
}

// Of each layer and micro-batch the rows of other ranks' experts travel four times, and their router weights
// twice. What else a rank sends, a dry run counts too.
TEST(ExpertRanks, SendWhatTheoryAndTheDryRunSay) {
  for (const int64_t experts : {2, 4}) {
    const Settings s = settings_of(4, experts, {"train.accumulation=2", "parallel.zero=1"});
    const ModelSettings& m = s.model;
    const int64_t C = expert_capacity(s.train.sequence, m.experts_per_token, m.experts, m.capacity_factor),
                  rows = m.experts * s.train.micro_batch * C;
    const int64_t theory = m.layers * s.train.accumulation * rows * (experts - 1) / experts *
                           (4 * m.d_model + 2) * int64_t{sizeof(float)};
    Settings one = s;
    one.train.accumulation *= 4;
    const BatchSource batches = test::random_batches(one);
    const std::vector<DryRun> predicted = {dry_run_of_rank(s, 0, {}), dry_run_of_rank(s, 1, {}),
                                           dry_run_of_rank(s, 2, {}), dry_run_of_rank(s, 3, {})};
    test::run_data_ranks(
        4,
        [&](DataRanks ranks) {
          Trainer trainer(s, at::kCPU, batches, ranks);
          trainer.step(0);
          EXPECT_EQ(ranks.experts->sent_bytes(), theory);
          const DryRun& run = predicted[static_cast<size_t>(ranks.rank())];
          EXPECT_EQ(run.sent_rows_bytes, theory);
          EXPECT_EQ(run.sent_bytes, test::sent_bytes(ranks)) << "rank " << ranks.rank();
        },
        experts);
  }
}

// All routers prefer the first two experts, which are rank 0's: the other rank receives no row, and nobody
// waits for one.
TEST(ExpertRanks, ExpertsWithoutTokensHoldNobodyUp) {
  for (const std::string dispatch : {"dropless", "capacity"}) {
    const Settings s = settings_of(
        2, 2, {"model.dispatch=" + dispatch, "model.router=sigmoid", "optim.weight_decay=0", "optim.clip=0"});
    const BatchSource batches = test::random_batches(s);
    test::run_data_ranks(
        2,
        [&](DataRanks ranks) {
          Trainer trainer(s, at::kCPU, batches, ranks);
          for (const Transformer::Buffer& bias : trainer.model().buffers())
            bias.tensor.narrow(0, 0, 2).fill_(9);
          const auto experts = [&] {
            std::vector<at::Tensor> all;
            for (const TensorEntry& entry : trainer.weights())
              if (entry.name.find(".experts.") != std::string::npos) all.push_back(entry.tensor.clone());
            return all;
          };
          const std::vector<at::Tensor> before = experts();
          EXPECT_FALSE(trainer.step(0).skipped);
          const std::vector<at::Tensor> after = experts();
          ASSERT_EQ(after.size(), 4U);
          for (size_t i = 0; i < after.size(); ++i)
            EXPECT_EQ(at::equal(before[i], after[i]), ranks.rank() == 1)
                << dispatch << " rank " << ranks.rank();
          EXPECT_TRUE(std::isfinite(trainer.step(1).loss));
        },
        2);
  }
}

}  // namespace
}  // namespace moelab
