// A run of N ranks stops, and M ranks with another stage of ZeRO, or with other experts, go on from its
// checkpoint: the bits of one rank that was never stopped.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <set>

#include "tests/temporary_folder.h"
#include "tests/train/step/compared_runs.h"
#include "tests/train/step/data_ranks.h"
#include "tests/train/step/random_run.h"
#include "train/checkpoint/checkpoint.h"
#include "train/program/commands/open_run.h"
#include "train/program/commands/run_state.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

constexpr int64_t kMicroBatches = 12;  // of a step, over all ranks

using Overrides = std::vector<std::string>;

// Data-parallel ranks that divide the state by a stage of ZeRO, and the experts; how many share matrices, and
// how many share layers, in chunks.
struct Layout {
  int64_t ranks = 1, stage = 0, experts = 1, tensor = 1, pipeline = 1, chunks = 1;
  std::string text() const {
    return std::to_string(ranks) + " ranks, stage " + std::to_string(stage) + ", experts over " +
           std::to_string(experts) + ", matrices over " + std::to_string(tensor) + ", layers over " +
           std::to_string(pipeline) + " x " + std::to_string(chunks);
  }
};

// Runs rank(ranks) on each.
void run(const Layout& layout, const std::function<void(DataRanks)>& rank) {
  test::run_ranks(
      {.data = layout.ranks, .tensor = layout.tensor, .pipeline = layout.pipeline, .expert = layout.experts},
      rank, layout.stage > 0);
}

Settings settings_of(const Layout& layout, const Overrides& more) {
  Overrides all = {"model.vocab=60",
                   "model.d_model=32",
                   "model.layers=2",
                   "model.heads=4",
                   "model.d_expert=48",
                   "model.router=sigmoid",
                   "train.micro_batch=1",
                   "train.sequence=16",
                   "train.steps=8",
                   "optim.warmup=1",
                   "optim.clip=0.5",
                   "parallel.data=" + std::to_string(layout.ranks),
                   "parallel.zero=" + std::to_string(layout.ranks == 1 ? 0 : layout.stage),
                   "parallel.expert=" + std::to_string(layout.experts),
                   "parallel.tensor=" + std::to_string(layout.tensor),
                   "parallel.pipeline=" + std::to_string(layout.pipeline),
                   "parallel.chunks=" + std::to_string(layout.chunks),
                   std::string("parallel.schedule=") + (layout.chunks > 1 ? "interleaved" : "1f1b"),
                   "train.accumulation=" + std::to_string(kMicroBatches / layout.ranks)};
  all.insert(all.end(), more.begin(), more.end());
  return load_settings({.config = "moe-pico", .overrides = all});
}

struct Outcome {
  std::vector<double> losses;
  std::vector<TensorEntry> weights, state;
};

std::vector<TensorEntry> copies(std::vector<TensorEntry> entries) {
  for (TensorEntry& entry : entries) entry.tensor = entry.tensor.clone();
  return entries;
}

// Steps from `from` to `to`, resumed from what is in `folder` unless `from` is 0, saved there if `saves`.
Outcome train(const Settings& s, DataRanks ranks, int64_t from, int64_t to,
              const std::filesystem::path& folder, bool saves) {
  Trainer trainer(s, at::kCPU, test::random_batches(settings_of({}, {})), ranks);
  MemoryManager manager(s, [](const Settings&) { return int64_t{0}; });
  if (from > 0) {
    const LoadedCheckpoint loaded = load_latest(folder);
    EXPECT_EQ(loaded.state.step, from);
    restore_run(loaded, s, trainer, manager);
  }
  Outcome outcome;
  for (int64_t step = from; step < to; ++step) outcome.losses.push_back(trainer.step(step).loss);
  if (saves && ranks.checkpoint)
    write_checkpoint(folder, run_state(trainer, manager, s, {}, to, 0), 1, *ranks.checkpoint);
  outcome.weights = copies(trainer.weights());
  outcome.state = copies(trainer.optimizer_state());
  return outcome;
}

Outcome straight(const Overrides& more) { return train(settings_of({}, more), {}, 0, 4, "", false); }

void expect_resumed(const Outcome& want, const Layout& from, const Layout& to, const Overrides& more) {
  const std::string where = from.text() + " to " + to.text();
  const TemporaryFolder folder;
  const Settings before = settings_of(from, more), after = settings_of(to, more);
  run(from, [&](DataRanks ranks) { train(before, ranks, 0, 2, folder.path(), true); });
  run(to, [&](DataRanks ranks) {
    const Outcome got = train(after, ranks, 2, 4, folder.path(), false);
    EXPECT_EQ(got.losses, std::vector<double>(want.losses.begin() + 2, want.losses.end())) << where;
    test::expect_equal(got.weights, want.weights, where);
    test::expect_equal(got.state, want.state, where);
  });
}

// Over the 16 pairs, each stage is written and read by several numbers of ranks.
void expect_all_resumed(const Overrides& more) {
  const Outcome want = straight(more);
  for (const double loss : want.losses) ASSERT_TRUE(std::isfinite(loss));
  for (int64_t from = 1; from <= 4; ++from)
    for (int64_t to = 1; to <= 4; ++to)
      expect_resumed(want, {from, (from + to) % 4}, {to, (from + 2 * to + 1) % 4}, more);
}

TEST(ResumeRanks, AnyNumberAndStageGoesOnFromAnyOther) { expect_all_resumed({"precision.compute=bf16"}); }

TEST(ResumeRanks, StateInBlocksAndInMatricesIsDividedAnew) {
  const TemporaryFolder drive;
  const std::vector<Overrides> cases = {
      {"optim.name=adam8bit", "precision.compute=bf16", "precision.master=none"},
      {"optim.name=adafactor"},
      {"optim.name=muon", "precision.compute=bf16", "placement.optimizer=host"},
      {"optim.name=adam_mini", "precision.compute=bf16", "precision.store=int8"},
      {"precision.compute=bf16", "placement.parameters=nvme", "placement.optimizer=nvme",
       "placement.nvme_path=" + drive.string()}};
  for (const Overrides& more : cases) {
    SCOPED_TRACE(more.front());
    const Outcome want = straight(more);
    expect_resumed(want, {3, 3}, {4, 1}, more);
    expect_resumed(want, {1, 0}, {2, 3}, more);
    expect_resumed(want, {4, 2}, {1, 0}, more);
  }
}

TEST(ResumeRanks, ExpertsGoToOtherRanks) {
  for (const Overrides& more :
       {Overrides{"precision.compute=bf16"}, Overrides{"optim.name=adafactor", "model.shared_experts=1"},
        Overrides{"optim.name=adam8bit", "precision.compute=bf16", "precision.master=none"}}) {
    SCOPED_TRACE(more.front());
    const Outcome want = straight(more);
    expect_resumed(want, {4, 0, 2}, {2, 3, 1}, more);
    expect_resumed(want, {1, 0, 1}, {4, 3, 2}, more);
    expect_resumed(want, {4, 1, 2}, {4, 0, 4}, more);
    expect_resumed(want, {4, 2, 4}, {1, 0, 1}, more);
  }
}

// Weights and state go from each layout to the next, which saves what it was given, and back to one rank.
TEST(ResumeRanks, SlicesOfMatricesGoToOtherRanks) {
  for (const Overrides& more :
       {Overrides{"model.qk_norm=head"},
        Overrides{"precision.compute=bf16", "optim.state=bf16", "model.shared_experts=1"},
        Overrides{"optim.name=lion", "model.experts=0", "model.tie_embeddings=false",
                  "precision.compute=bf16", "precision.master=none"}}) {
    SCOPED_TRACE(more.front());
    const bool dense = more.size() > 2 && more[1] == "model.experts=0";
    const TemporaryFolder folder;
    const Outcome want = train(settings_of({}, more), {}, 0, 2, folder.path(), true);
    for (const Layout& layout :
         {Layout{.tensor = 2}, Layout{.ranks = 2, .stage = 3, .tensor = 2},
          Layout{.ranks = 2, .experts = dense ? 1 : 2, .tensor = 2}, Layout{.tensor = 4},
          Layout{.ranks = 3, .stage = 1}, Layout{.ranks = 2, .stage = 0, .tensor = 2}, Layout{}}) {
      SCOPED_TRACE(layout.text());
      const Settings s = settings_of(layout, more);
      run(layout, [&](DataRanks ranks) {
        const Outcome got = train(s, ranks, 2, 2, folder.path(), true);
        test::expect_equal(got.weights, want.weights, layout.text());
        test::expect_equal(got.state, want.state, layout.text());
      });
      if (HasFailure()) return;
    }
  }
}

// Every two ways of sharing the model at four ranks: each takes a step from what the one before has saved,
// unless its steps have other bits than one rank's; at the end one rank writes the files that it would have
// written alone.
TEST(ResumeRanks, EveryPairOfAxesGoesOnFromEveryOther) {
  const Overrides more = {"precision.compute=bf16", "model.layers=4", "model.tie_embeddings=false"};
  std::vector<Outcome> alone;
  const TemporaryFolder folder, whole;
  for (int64_t steps = 0; steps <= 6; ++steps)
    alone.push_back(train(settings_of({}, more), {}, 0, steps, whole.path(), true));
  train(settings_of({}, more), {}, 0, 1, folder.path(), true);
  int64_t step = 1;
  for (const Layout& layout :
       {Layout{.ranks = 4, .stage = 3, .experts = 2}, Layout{.tensor = 2, .pipeline = 2},
        Layout{.ranks = 2, .stage = 3, .pipeline = 2}, Layout{.ranks = 2, .experts = 2, .tensor = 2},
        Layout{.ranks = 2, .experts = 2, .pipeline = 2}, Layout{.ranks = 2, .stage = 3, .tensor = 2},
        Layout{.ranks = 2, .stage = 3, .pipeline = 2, .chunks = 2},
        Layout{.tensor = 2, .pipeline = 2, .chunks = 2},
        Layout{.ranks = 2, .experts = 2, .pipeline = 2, .chunks = 2}, Layout{}}) {
    SCOPED_TRACE(layout.text());
    const Settings s = settings_of(layout, more);
    const int64_t from = step;
    const bool same_bits = layout.tensor == 1 && layout.ranks > 1;
    step += same_bits ? 1 : 0;
    std::set<std::string> left;
    for (const auto* entries : {&alone[step].weights, &alone[step].state})
      for (const TensorEntry& entry : *entries) left.insert(entry.name);
    std::mutex mutex;
    run(layout, [&](DataRanks ranks) {
      const Outcome got = train(s, ranks, from, step, folder.path(), true);
      const std::lock_guard lock(mutex);
      test::expect_among(got.weights, alone[step].weights, left, layout.text());
      test::expect_among(got.state, alone[step].state, left, layout.text());
    });
    EXPECT_TRUE(left.empty()) << "no rank has " << *left.begin();
    if (HasFailure()) return;
  }
  for (const char* const file : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string last = "step-" + std::to_string(step);
    EXPECT_EQ(read_text(folder.path() / last / file), read_text(whole.path() / last / file)) << file;
  }
}

}  // namespace
}  // namespace moelab
