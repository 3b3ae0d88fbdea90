// Ranks that share the layers (parallel.pipeline), as threads, beside one rank that has all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/memory/report.h"
#include "tests/temporary_folder.h"
#include "tests/train/step/beside_one_rank.h"
#include "train/parallel/layout.h"
#include "train/predict/dry_run.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

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

RankLayout layout(const Settings& s) {
  const ParallelSettings& p = s.parallel;
  return {.data = p.data, .tensor = p.tensor, .pipeline = p.pipeline, .expert = p.expert};
}

// The run of one rank that takes all micro-batches.
Settings alone(const Settings& s) {
  Settings one = s;
  one.parallel = {};
  one.train.accumulation *= s.parallel.data;
  return one;
}

// Each entry of a rank is in the whole run, bit by bit.
void expect_among(const std::vector<TensorEntry>& got, const std::vector<TensorEntry>& want,
                  std::set<std::string>& left, const std::string& where) {
  std::map<std::string, at::Tensor> whole;
  for (const TensorEntry& entry : want) whole[entry.name] = entry.tensor;
  for (const TensorEntry& entry : got) {
    ASSERT_TRUE(whole.contains(entry.name)) << where << ": " << entry.name;
    EXPECT_TRUE(test::bitwise_equal(entry.tensor, test::own_part(whole[entry.name], entry)))
        << where << ": " << entry.name;
    left.erase(entry.name);
  }
}

void expect_outcome(const Settings& s, const BatchSource& batches, const Outcome& want,
                    const std::string& where) {
  for (const double number : want.numbers) ASSERT_TRUE(std::isfinite(number)) << where;
  std::vector<Outcome> got(layout(s).ranks());
  try {
    test::run_ranks(layout(s), [&](DataRanks ranks) {
      got[ranks.control->rank()] = test::outcome_of(s, batches, ranks);
    });
  } catch (const std::exception& error) {
    FAIL() << where << ": " << error.what();
  }
  std::set<std::string> left;
  for (const auto* entries : {&want.weights, &want.state})
    for (const TensorEntry& entry : *entries) left.insert(entry.name);
  for (size_t r = 0; r < got.size(); ++r) {
    const std::string rank = where + ", rank " + std::to_string(r);
    EXPECT_EQ(got[r].numbers, want.numbers) << rank;
    const bool same_evaluation = s.parallel.expert == 1 || !test::sums_in_fp32(s);
    EXPECT_NEAR(got[r].held_out, want.held_out, same_evaluation ? 0 : 5e-6 * want.held_out) << rank;
    expect_among(got[r].weights, want.weights, left, rank);
    expect_among(got[r].state, want.state, left, rank);
  }
  EXPECT_TRUE(left.empty()) << where << ": no rank has " << *left.begin();
}

void expect_bits_of_one_rank(const Settings& s, const std::string& where) {
  const BatchSource batches = test::random_batches(alone(s));
  expect_outcome(s, batches, test::outcome_of(alone(s), batches, {}), where);
}

void expect_bits_of_one_rank(const std::vector<Overrides>& cases, const std::vector<Overrides>& layouts) {
  for (const Overrides& more : cases) {
    for (const Overrides& ranks : layouts) {
      Overrides all = more;
      all.insert(all.end(), ranks.begin(), ranks.end());
      std::string where;
      for (const std::string& one : all) where += one + " ";
      expect_bits_of_one_rank(settings_of(all), where);
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
  expect_outcome(s, batches, want, "parallel.reduce=step");
}

// Each end of the pipeline has a copy of the embedding and a part of its gradient. These are added in another
// order than on one rank.
TEST(PipelineRanks, KeepATiedEmbeddingAlikeAtBothEnds) {
  constexpr int64_t kStepsThere = 5;
  for (const Overrides& more : {Overrides{"parallel.pipeline=2"},
                                {"parallel.pipeline=4", "placement.gradients=host"},
                                {"parallel.pipeline=2", "parallel.data=2", "parallel.zero=1"}}) {
    Settings s = settings_of(more);
    s.model.tie_embeddings = true;
    const BatchSource batches = test::random_batches(alone(s));
    std::vector<double> norms(layout(s).ranks() + 1);
    const auto trained = [&](const Settings& settings, DataRanks ranks, double& norm) {
      Trainer trainer(settings, at::kCPU, batches, ranks);
      for (int64_t step = 0; step < kStepsThere; ++step) norm = trainer.step(step).gradient_norm;
      std::map<std::string, TensorEntry> weights;
      for (TensorEntry entry : trainer.weights()) {
        entry.tensor = entry.tensor.clone();
        weights.emplace(entry.name, entry);
      }
      return weights;
    };
    const auto want = trained(alone(s), {}, norms.back());
    std::vector<std::map<std::string, TensorEntry>> got(layout(s).ranks());
    test::run_ranks(layout(s), [&](DataRanks ranks) {
      const int64_t r = ranks.control->rank();
      got[r] = trained(s, ranks, norms[r]);
    });
    for (size_t r = 0; r < got.size(); ++r) {
      double difference = 0, size = 0;
      for (const auto& [name, entry] : got[r]) {
        const at::Tensor whole = test::own_part(want.at(name).tensor, entry).to(at::kDouble);
        difference += entry.tensor.to(at::kDouble).sub(whole).square().sum().item<double>();
        size += whole.square().sum().item<double>();
      }
      EXPECT_LE(std::sqrt(difference / size), 5e-6) << more.front() << " rank " << r;
      EXPECT_EQ(norms[r], norms[0]);
      EXPECT_NEAR(norms[r], norms.back(), 1e-5 * norms.back());
    }
    const size_t in_stage = got.size() / s.parallel.pipeline;
    for (size_t r = 0; r < in_stage; ++r) {
      const TensorEntry &first = got[r].at("embedding"),
                        &last = got[got.size() - in_stage + r].at("embedding");
      EXPECT_TRUE(test::bitwise_equal(first.tensor, last.tensor)) << more.front();
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
