// Ranks along every axis: what they send, how long a step takes, what it holds, and which layouts a plan
// tries.
#include "train/predict/layouts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "train/predict/block_shape.h"
#include "train/predict/dry_run.h"
#include "train/predict/formula.h"
#include "train/predict/planner.h"
#include "train/predict/rank_time.h"
#include "train/predict/shallow_run.h"
#include "train/settings/assign.h"
#include "train/settings/load.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

using Words = std::vector<std::string>;

Settings settings(Words words, const char* config = "moe-micro") {
  words.insert(words.end(), {"eval.batches=0", "run.device=cuda"});
  return load_settings({.config = config, .overrides = std::move(words)});
}

const CostModel& gpu() { return cost_model("a100"); }
Link link_of(double bytes_per_second, double latency = 0) {
  return {.name = "wire", .about = "a test's", .seconds_per_byte = 1 / bytes_per_second, .latency = latency};
}

std::string shown(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += word + " ";
  return text;
}

// Four ranks along two axes or one, some with recomputation and in 16 bits.
std::vector<Words> layouts() {
  std::vector<Words> all;
  for (const Words& axes : {Words{"parallel.data=4", "parallel.expert=2"},
                            {"parallel.data=4", "parallel.expert=4", "parallel.zero=1"},
                            {"parallel.data=4", "parallel.expert=2", "parallel.zero=3"},
                            {"parallel.data=4", "parallel.expert=2", "parallel.reduce=step"},
                            {"parallel.data=2", "parallel.tensor=2", "parallel.zero=1"},
                            {"parallel.tensor=2", "parallel.data=1"},
                            {"parallel.data=2", "parallel.tensor=2", "parallel.expert=2"},
                            {"parallel.data=2", "parallel.pipeline=2", "parallel.zero=1"},
                            {"parallel.data=2", "parallel.pipeline=2", "parallel.expert=2"}}) {
    for (const Words& more :
         {Words{"train.accumulation=2"},
          {"train.accumulation=4", "precision.compute=bf16", "activations.checkpoint=full"}}) {
      all.push_back(axes);
      all.back().insert(all.back().end(), more.begin(), more.end());
    }
  }
  return all;
}

TEST(Layouts, BytesAreWhatADryRunSends) {
  install_allocators();
  for (const Words& words : layouts()) {
    const Settings s = settings(words);
    const auto counted = static_cast<double>(dry_run_of_rank(s, 0, gpu().gpu).sent_bytes);
    EXPECT_NEAR(step_sent_bytes(s) / counted, 1, 0.02) << shown(words);
  }
}

TEST(Layouts, FormulaIsNearTheDryRun) {
  install_allocators();
  for (const Words& words : layouts()) {
    const Settings s = settings(words, "moe-nano");
    EXPECT_NEAR(peak_formula(s).peak / static_cast<double>(dry_run(s).peak), 1, 0.25) << shown(words);
  }
}

TEST(Layouts, FewerMicroBatchesHaveTheSamePeak) {
  install_allocators();
  for (const Words& axes : {Words{"parallel.pipeline=3"},
                            {"parallel.data=2", "parallel.zero=1"},
                            {"parallel.tensor=2"},
                            {"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.chunks=3"}}) {
    Words words = axes;
    words.insert(words.end(), {"train.accumulation=12", "train.micro_batch=1"});
    const Settings s = settings(words), few = with_few_passes(s);
    EXPECT_LT(few.train.accumulation, 12) << shown(axes);
    EXPECT_EQ(dry_run(few).peak, dry_run(s).peak) << shown(axes);
  }
}

// Every second block is recomputed, or four together; ranks divide or code the state, or offload it.
TEST(Layouts, FewBlocksSayWhatADeepRunHolds) {
  install_allocators();
  const Gpu& h100 = cost_model("h100").gpu;
  const PredictBytes whole = [&](const Settings& s) { return dry_run(s, h100).held(); };
  for (Words words :
       {Words{"parallel.data=4", "parallel.tensor=8", "parallel.zero=3", "activations.checkpoint=every",
              "activations.every=2"},
        {"parallel.data=2", "parallel.tensor=4", "activations.storage=int8", "placement.optimizer=host",
         "activations.checkpoint=segments", "activations.every=4", "train.accumulation=2"},
        {"parallel.data=4", "parallel.zero=1", "precision.store=int8", "placement.gradients=host"}}) {
    words.insert(words.end(), {"train.micro_batch=1", "precision.compute=bf16"});
    const Settings s = settings(words, "dense-70b");
    const int64_t exact = whole(s), about = held_by_depth(s, h100).value();
    EXPECT_NEAR(static_cast<double>(about) / static_cast<double>(exact), 1, kDepthError) << shown(words);
    EXPECT_EQ(exact_up_to(exact, h100, whole)(s), exact) << shown(words);
    EXPECT_EQ(exact_up_to(exact / 2, h100, whole)(s), about) << shown(words);
    EXPECT_GE(quick_and_above(h100, whole)(s), exact) << shown(words);
  }
  EXPECT_FALSE(held_by_depth(settings({}), h100));  // too few blocks
  for (const Words& words : {Words{"parallel.pipeline=2"},
                             {"activations.checkpoint=segments", "activations.every=16"},
                             {"activations.checkpoint=every", "activations.every=3"},
                             {"activations.checkpoint=ratio", "activations.ratio=0.3"}})
    EXPECT_FALSE(held_by_depth(settings(words, "dense-70b"), h100)) << shown(words);
}

// Two machines of four ranks: neighbours along tensor are in one; of seven others along data four are away.
TEST(Roads, LeaveTheMachineWhereAnAxisDoes) {
  Network network(link_of(100e9, 1e-6));
  network.between = link_of(10e9, 5e-6);
  network.machine_ranks = 4;
  const Road within = road_along(network, {.data = 2, .tensor = 4}, Axis::tensor);
  EXPECT_FALSE(within.leaves);
  EXPECT_DOUBLE_EQ(within.seconds_per_byte, 1 / 100e9);
  const Road out = road_along(network, {.data = 2, .tensor = 4}, Axis::data);
  EXPECT_TRUE(out.leaves);
  EXPECT_DOUBLE_EQ(out.seconds_per_byte, 1 / 10e9);
  EXPECT_DOUBLE_EQ(out.latency, 5e-6);
  EXPECT_DOUBLE_EQ(road_along(network, {.data = 8}, Axis::data).seconds_per_byte, 4.0 / 7 / 10e9);
  EXPECT_DOUBLE_EQ(road_along(network, {.data = 4, .pipeline = 2}, Axis::pipeline).seconds_per_byte,
                   1 / 10e9);
  EXPECT_FALSE(road_along(link_of(1), {.data = 8}, Axis::data).leaves);
}

// Four sums a layer, one for the embedding and one for the head, each there and back.
TEST(LayoutTime, NothingHidesSumsOverSlices) {
  const Settings s = settings({"parallel.tensor=2", "train.accumulation=4", "parallel.data=1"});
  const StepTime time = step_time(s, gpu(), link_of(20e9, 1e-5));
  const double stream = 4.0 * static_cast<double>(s.train.micro_batch * s.train.sequence * s.model.d_model);
  const double sums = 4 * (4 * static_cast<double>(s.model.layers) + 2);
  EXPECT_NEAR(time.sums, sums * (stream / 20e9 + 2e-5), 1e-9);
  const double alone = gpu().step_seconds(step_cost(settings({"train.accumulation=4"})));
  EXPECT_GT(time.computing, 0.5 * alone);  // norms, routers and calls are everybody's
  EXPECT_LT(time.computing, 0.8 * alone);
}

// Of R rows, half goes to the other rank and comes back, with 4 bytes of router weight; in backward as much,
// and a recomputed block's forward again.
TEST(LayoutTime, NothingHidesRows) {
  for (const bool recomputed : {false, true}) {
    const Settings s = settings({"parallel.data=2", "parallel.expert=2", "precision.compute=bf16",
                                 recomputed ? "activations.checkpoint=full" : "activations.checkpoint=none"});
    const double rows = BlockShape(s).expert_rows;
    const double once = rows / 2 * (2 * 2 * static_cast<double>(s.model.d_model) + 4) / 1e9 + 2e-6;
    const double all = (recomputed ? 3 : 2) * static_cast<double>(s.model.layers) * once;
    const double behind = step_sent_bytes(s) / 1e9 - all;  // gradients go ahead of some
    const double waited = step_time(s, gpu(), link_of(1e9, 1e-6)).rows;
    EXPECT_GE(waited, (1 - 1e-9) * all);
    EXPECT_LE(waited, all + behind);
  }
}

// A pipeline's stages wait as the schedule says. The last one has the head, of 256 tokens, besides.
TEST(LayoutTime, StagesWaitForEachOther) {
  for (const Words& more : {Words{}, {"parallel.schedule=interleaved", "parallel.chunks=3"}}) {
    Words words = {"parallel.pipeline=2", "train.accumulation=64", "parallel.data=1"};
    words.insert(words.end(), more.begin(), more.end());
    const Settings s = settings(words);
    const StepTime time = step_time(s, gpu(), link_of(1e15));
    const double chunks = more.empty() ? 1 : 3;
    EXPECT_NEAR(time.stages / time.total(), 1 / (chunks * 64 + 1), 0.004) << shown(words);
    const double alone = gpu().step_seconds(step_cost(settings({"train.accumulation=64"})));
    EXPECT_NEAR(time.computing / alone, 0.5, 0.06) << shown(words);
    const StepTime slow = step_time(s, gpu(), link_of(1e15, 1e-3));
    EXPECT_GT(slow.stages, time.stages + 1e-3) << shown(words);
  }
}

TEST(LayoutTime, ASlowerNetworkIsNeverFaster) {
  for (const Words& words : layouts()) {
    double before = 0;
    for (const double rate : {400e9, 10e9, 1e9, 0.1e9}) {
      Network network(link_of(400e9));
      network.between = link_of(rate, 1e-6);
      network.machine_ranks = 2;
      const double seconds = step_time(settings(words), gpu(), network).total();
      EXPECT_GE(seconds, before * (1 - 1e-12)) << shown(words) << rate;
      before = seconds;
    }
  }
}

TEST(BestLayouts, AreRunsOfTheSameRanksAndSequences) {
  const Settings base = settings({"parallel.data=16", "train.accumulation=4"}, "olmoe-1b-7b");
  Network network(find_link("nvlink4"));
  network.between = find_link("400Gbit");
  network.machine_ranks = 8;
  const Words pinned = {"parallel.zero"};
  for (const int64_t room : {int64_t{76} << 30, int64_t{1} << 30}) {
    const auto best = best_layouts(base, pinned, cost_model("h100"), network, room);
    ASSERT_FALSE(best.empty());
    EXPECT_LE(best.size(), 6u);
    for (const RankLayoutOption& layout : best) {
      Settings s = base;
      for (const auto& [key, value] : layout.changes)
        assign(s, {key, {Value::Kind::argument, value, {}, 0}, "test"});
      s.train.accumulation *= layout.more_passes;
      EXPECT_NO_THROW(validate(s));
      EXPECT_EQ(s.parallel.ranks(), 16);
      EXPECT_EQ(s.parallel.zero, 0);
      EXPECT_EQ(step_tokens(s), step_tokens(base));
    }
  }
  // with 64 experts, sharing them leaves the fewest bytes to send; nothing is gained from slices
  const auto free = best_layouts(base, {}, cost_model("h100"), network, int64_t{76} << 30);
  EXPECT_GT(std::stoll(free.front().changes.at("parallel.expert")), 1);
  EXPECT_EQ(free.front().changes.at("parallel.tensor"), "1");
}

}  // namespace
}  // namespace moelab
