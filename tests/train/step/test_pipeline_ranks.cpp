// Ranks that share the layers (parallel.pipeline), as threads, beside one rank that has all of them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/memory/report.h"
#include "tests/temporary_folder.h"
#include "tests/train/step/beside_one_rank.h"
#include "tests/train/step/close_to_one_rank.h"
#include "train/predict/dry_run.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

using test::alone;
using test::layout;
using test::Outcome;
using Overrides = std::vector<std::string>;

Settings settings_of(const Overrides& more) {
  Overrides all = test::kTinyRun;
  for (const char* one : {"parallel.data=1", "model.layers=4", "train.micro_batch=1",
                          "model.tie_embeddings=false", "train.accumulation=4"})
    all.emplace_back(one);
  all.insert(all.end(), more.begin(), more.end());
  return load_settings({.config = "moe-pico", .overrides = all});
}

void expect_bits_of_one_rank(const std::vector<Overrides>& cases, const std::vector<Overrides>& layouts) {
  for (const Overrides& more : cases) {
    for (const Overrides& ranks : layouts) {
      Overrides all = more;
      all.insert(all.end(), ranks.begin(), ranks.end());
      std::string where;
      for (const std::string& one : all) where += one + " ";
      test::expect_bits_of_one_rank(settings_of(all), where);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(PipelineRanks, HaveTheBitsOfOneRank) {
  const TemporaryFolder drive;
  const std::string drive_setting = "placement.nvme_path=" + drive.string();
  expect_bits_of_one_rank(
      {{},
       {"precision.compute=bf16", "model.layers=5", "model.router=sigmoid", "train.accumulation=3"},
       {"model.dispatch=dropless", "activations.checkpoint=full", "placement.optimizer=host"},
       {"precision.compute=bf16", "activations.pieces=[moe, norms]", "activations.storage=host"},
       {"precision.compute=fp16", "model.experts=0", "placement.parameters=host", "train.accumulation=1",
        "activations.checkpoint=full"},
       {"train.tokens_per_device=96", "activations.checkpoint=every", "activations.every=2",
        "activations.storage=int8"},
       {"precision.compute=bf16", "activations.checkpoint=segments", "activations.every=2",
        "precision.gradient_sums=bf16", "train.accumulation=3"},
       {"precision.compute=bf16", "placement.gradients=nvme", "placement.optimizer=nvme",
        "activations.storage=nvme", drive_setting}},
      {{"parallel.pipeline=2"}, {"parallel.pipeline=4"}});
}

TEST(PipelineRanks, HaveTheBitsOfOneRankInterleaved) {
  const Overrides two = {"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.chunks=2"};
  expect_bits_of_one_rank({{},
                           {"model.layers=8", "parallel.chunks=4", "train.accumulation=2"},
                           {"precision.compute=bf16", "train.tokens_per_device=96",
                            "activations.checkpoint=full", "model.router=sigmoid"}},
                          {two});
  expect_bits_of_one_rank({{"model.layers=8"}},
                          {{"parallel.pipeline=4", "parallel.schedule=interleaved", "parallel.chunks=2"}});
}

TEST(PipelineRanks, HaveTheBitsOfOneRankBesideDataAndExperts) {
  const Overrides stages = {"parallel.pipeline=2", "parallel.data=2", "train.accumulation=2"};
  expect_bits_of_one_rank(
      {{},
       {"parallel.zero=1", "precision.compute=bf16"},
       {"parallel.zero=3", "activations.checkpoint=full"},
       {"parallel.zero=3", "activations.checkpoint=segments", "activations.every=2", "precision.compute=bf16",
        "precision.gradient_sums=bf16"},
       {"parallel.zero=3", "placement.reshard_after_forward=false", "train.tokens_per_device=96"},
       {"parallel.expert=2"},
       {"parallel.expert=2", "precision.compute=bf16", "model.dispatch=dropless", "activations.pieces=[moe]"},
       {"parallel.zero=1", "parallel.schedule=interleaved", "parallel.chunks=2"}},
      {stages});
}

// Sums of a rank's own micro-batches have other bits than one rank's, and the bits of data-parallel ranks.
TEST(PipelineRanks, AddGradientsOnceAStepAsDataParallelRanksDo) {
  const Settings s = settings_of({"parallel.pipeline=2", "parallel.data=2", "train.accumulation=2",
                                  "parallel.reduce=step", "precision.compute=bf16"});
  Settings data = s;
  data.parallel.pipeline = 1;
  const BatchSource batches = test::random_batches(alone(s));
  Outcome want;
  test::run_ranks(layout(data), [&](DataRanks ranks) {
    const Outcome one = test::outcome_of(data, batches, ranks);
    if (ranks.rank() == 0) want = one;
  });
  test::expect_outcome(s, batches, want, "parallel.reduce=step");
}

// Each end of the pipeline has a copy of the embedding and a part of its gradient. These are added in another
// order than on one rank.
TEST(PipelineRanks, KeepATiedEmbeddingAlikeAtBothEnds) {
  for (const Overrides& more : {Overrides{"parallel.pipeline=2"},
                                {"parallel.pipeline=4", "placement.gradients=host"},
                                {"parallel.pipeline=2", "parallel.data=2", "parallel.zero=1"}}) {
    Settings s = settings_of(more);
    s.model.tie_embeddings = true;
    const test::Trained want = test::train(alone(s), {});
    const std::vector<test::Trained> got = test::train_on(s);
    EXPECT_LE(test::difference(got, want), 5e-6) << more.front();
    const double norm = got[0].steps.back().gradient_norm, norm_alone = want.steps.back().gradient_norm;
    EXPECT_NEAR(norm, norm_alone, 1e-5 * norm_alone);
    for (const test::Trained& rank : got) EXPECT_EQ(rank.steps.back().gradient_norm, norm);
    const size_t in_stage = got.size() / s.parallel.pipeline;
    for (size_t r = 0; r < in_stage; ++r) {
      const at::Tensor first = test::weight("embedding", got[r]),
                       last = test::weight("embedding", got[got.size() - in_stage + r]);
      EXPECT_TRUE(test::bitwise_equal(first, last)) << more.front();
    }
  }
}

// A message forward and one back for each micro-batch and boundary of chunks: the residual stream and two
// losses.
TEST(PipelineRanks, SendWhatTheoryAndTheDryRunSay) {
  for (const Overrides& more :
       {Overrides{"parallel.pipeline=4"},
        {"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.chunks=2"}}) {
    const Settings s = settings_of(more);
    const ParallelSettings& p = s.parallel;
    const int64_t message = s.train.micro_batch * s.train.sequence * s.model.d_model * 4 + 2 * 4;
    std::vector<DryRun> predicted;
    for (int64_t r = 0; r < p.pipeline; ++r) predicted.push_back(dry_run_of_rank(s, r, {}));
    const BatchSource batches = test::random_batches(s);
    test::run_ranks(layout(s), [&](DataRanks ranks) {
      Trainer trainer(s, at::kCPU, batches, ranks);
      trainer.step(0);
      const int64_t r = ranks.control->rank(), of_last = r + 1 == p.pipeline, of_first = r == 0;
      EXPECT_EQ(ranks.stages->sent_bytes(), (p.chunks - of_last) * s.train.accumulation * message);
      EXPECT_EQ(ranks.stage_gradients->sent_bytes(), (p.chunks - of_first) * s.train.accumulation * message);
      const DryRun& run = predicted[static_cast<size_t>(r)];
      EXPECT_EQ(run.sent_stage_bytes, ranks.stages->sent_bytes() + ranks.stage_gradients->sent_bytes());
      EXPECT_EQ(run.sent_bytes, run.sent_stage_bytes);
    });
  }
}

// The first stage keeps what all passes under way need, the last one's head makes logits; with recomputation
// a pass keeps its input alone.
TEST(PipelineRanks, HoldWhatThePassesUnderWayKeep) {
  const auto activations = [](const Overrides& more, int64_t rank) {
    Overrides all = {"model.vocab=16", "parallel.pipeline=4", "train.accumulation=8"};
    all.insert(all.end(), more.begin(), more.end());
    const DryRun run = dry_run_of_rank(settings_of(all), rank, {});
    int64_t bytes = 0;
    for (const auto& [name, held] : kind_report(run.by_kind_in_forward))
      if (name == "activations") bytes = held;
    return bytes;
  };
  const int64_t one_pass = activations({"train.accumulation=1"}, 1);
  EXPECT_NEAR(static_cast<double>(activations({}, 1)) / static_cast<double>(one_pass), 3, 0.35);
  EXPECT_LT(activations({"activations.checkpoint=full"}, 1), activations({}, 1) / 2);
}

}  // namespace
}  // namespace moelab
