#include "train/predict/rank_time.h"

#include <gtest/gtest.h>

#include "train/predict/block_shape.h"
#include "train/predict/dry_run.h"
#include "train/predict/layouts.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

using Words = std::vector<std::string>;

Settings settings(Words overrides, const char* config = "moe-micro") {
  overrides.insert(overrides.end(), {"eval.batches=0", "run.device=cuda"});
  return load_settings({.config = config, .overrides = std::move(overrides)});
}

// A GPU: its cores do not copy.
const CostModel& gpu() { return cost_model("a100"); }
Link link_of(double bytes_per_second, double latency = 0) {
  return {.name = "wire", .about = "a test's", .seconds_per_byte = 1 / bytes_per_second, .latency = latency};
}

// Layouts of `ranks`, each with some of the techniques that change what is sent.
std::vector<Settings> layouts(int64_t ranks) {
  const std::vector<Words> techniques = {{},
                                         {"precision.compute=bf16"},
                                         {"train.accumulation=4", "precision.compute=bf16"},
                                         {"train.accumulation=2"},
                                         {"precision.compute=bf16", "precision.store=int8"},
                                         {"optim.in_backward=true"},
                                         {"activations.checkpoint=full", "model.tie_embeddings=true"},
                                         {"placement.parameters=host"}};
  std::vector<Settings> all;
  for (const RankLayoutOption& layout : rank_layouts(ranks)) {
    for (Words words : techniques) {
      for (const auto& [key, value] : layout.changes) words.push_back(key + "=" + value);
      all.push_back(settings(words));
    }
  }
  return all;
}

std::string shown(const Settings& s) {
  return std::to_string(s.parallel.data) + " ranks, zero " + std::to_string(s.parallel.zero) +
         ", accumulation " + std::to_string(s.train.accumulation) +
         (s.parallel.reduce == Reduction::step ? ", once a step" : "") +
         (s.placement.reshard_after_forward ? "" : ", kept") + (s.optim.in_backward ? ", in backward" : "") +
         (s.precision.store == WeightStore::int8 ? ", int8" : "");
}

// Whole rows make parts uneven, and the final norm is not divided.
TEST(RankTime, BytesAreWhatADryRunSends) {
  install_allocators();
  for (const int64_t ranks : {2, 4}) {
    for (const Settings& s : layouts(ranks)) {
      const auto counted = static_cast<double>(dry_run_of_rank(s, 0, gpu().gpu).sent_bytes);
      EXPECT_NEAR(step_sent_bytes(s) / counted, 1, 0.01) << shown(s);
    }
  }
}

TEST(RankTime, ASlowerLinkIsNeverFaster) {
  for (const Settings& s : layouts(4)) {
    double before = 0;
    for (const double rate : {450e9, 50e9, 12.5e9, 1.25e9, 0.5e9, 0.125e9, 0.01e9}) {
      const double seconds = step_time(s, gpu(), link_of(rate)).total();
      EXPECT_GE(seconds, before * (1 - 1e-12)) << shown(s) << " at " << rate;
      EXPECT_LE(seconds, step_time(s, gpu(), link_of(rate, 1e-3)).total()) << shown(s) << " at " << rate;
      before = seconds;
    }
  }
}

// Nothing takes longer than computing and sending one after the other, nor less than the longer of the two.
TEST(RankTime, LiesBetweenTheLongerAndBothTogether) {
  for (const Settings& s : layouts(2)) {
    const double alone = gpu().step_seconds(step_cost(s));
    for (const double rate : {450e9, 1.25e9, 0.125e9}) {
      const StepTime time = step_time(s, gpu(), link_of(rate));
      const double sent = step_sent_bytes(s) / rate;
      EXPECT_NEAR(time.computing / alone, 1, 1e-3) << shown(s);
      EXPECT_EQ(time.copying, 0);
      EXPECT_GE(time.total(), 0.999 * std::max(alone, sent)) << shown(s) << " at " << rate;
      EXPECT_LE(time.total(), 1.001 * (alone + sent)) << shown(s) << " at " << rate;
    }
  }
}

// While backward computes a block longer than its gradients travel, the step waits for those of the first
// block and of the embedding alone, and thrice for words: after backward, for room, for the norm.
TEST(RankTime, BackwardHidesAllGradientsButTheLast) {
  const Settings s = settings({"parallel.data=2"});
  const BlockShape block(s);
  const double last = 4 * (block.parameters() + static_cast<double>(s.model.vocab * s.model.d_model));
  const StepTime time = step_time(s, gpu(), link_of(100e9, 1e-6));
  EXPECT_NEAR(time.waiting, last / 100e9 + 1e-6 + 2e-6, 1e-6);
}

// With ZeRO-1, updated weights of a block travel while those of the next are stepped, and while forward runs.
// What no computation hides over a slow link: nothing but the first half of what is sent, when they are.
TEST(RankTime, UpdatesTravelIntoTheNextStep) {
  const Settings divided = settings({"parallel.data=2", "parallel.zero=1"}),
                 waited = settings({"parallel.data=2", "parallel.zero=1", "placement.parameters=host"});
  const double sent = step_sent_bytes(divided), rate = 2 * sent / gpu().step_seconds(step_cost(divided));
  EXPECT_LT(step_time(divided, gpu(), link_of(rate)).waiting, 0.5 * sent / rate);
  EXPECT_GE(step_time(waited, gpu(), link_of(rate)).waiting, 0.5 * sent / rate);
}

TEST(RankTime, OneRankOnlyComputes) {
  const Settings s = settings({"parallel.data=1", "train.accumulation=2"});
  const StepTime time = step_time(s, gpu(), link_of(1));
  EXPECT_EQ(time.total(), gpu().step_seconds(step_cost(s)));
  EXPECT_EQ(step_sent_bytes(s), 0);
}

// A long step repeats its middle micro-batches, which the prediction multiplies.
TEST(RankTime, EachFurtherMicroBatchAddsTheSame) {
  for (const char* layout : {"parallel.zero=0", "parallel.zero=1", "parallel.zero=3"}) {
    const auto seconds = [&](int64_t accumulation) {
      return step_time(
                 settings({"parallel.data=2", layout, "train.accumulation=" + std::to_string(accumulation)}),
                 gpu(), link_of(1e9))
          .total();
    };
    EXPECT_NEAR((seconds(8) - seconds(4)) / (4 * (seconds(4) - seconds(3))), 1, 1e-6) << layout;
  }
}

// On a CPU the cores copy what is sent. Over the loopback device nothing else takes time, so that copies
// which no wait hides are the bytes over its rate.
TEST(RankTime, ACpusCoresCopy) {
  const Settings s = settings({"parallel.data=2", "parallel.zero=0"});
  const Link loopback = find_link("loopback");
  const StepTime time = step_time(s, cost_model("cpu"), loopback);
  EXPECT_GT(time.copying, 0.5 * step_sent_bytes(s) * loopback.seconds_per_byte);
  EXPECT_NEAR(time.copying + time.waiting,
              step_sent_bytes(s) * loopback.seconds_per_byte + 4 * loopback.latency, 8 * loopback.latency);
}

}  // namespace
}  // namespace moelab
