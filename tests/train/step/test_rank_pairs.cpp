// Four ranks that share a model in two ways at a time, as threads, beside one rank that has all of it. Every
// block is recomputed, and rows are packed.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/train/step/close_to_one_rank.h"
#include "train/predict/dry_run.h"
#include "train/settings/assign.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

using Overrides = std::vector<std::string>;

struct Pair {
  std::string name;
  Overrides axes;
  friend void PrintTo(const Pair& pair, std::ostream* out) { *out << pair.name; }
};

const std::vector<Pair>& pairs() {
  static const Overrides interleaved = {"parallel.pipeline=2", "parallel.schedule=interleaved",
                                        "parallel.chunks=2"};
  static const auto with = [](Overrides all, const Overrides& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  static const std::vector<Pair> all = {
      {"Zero3Expert", {"parallel.data=4", "parallel.zero=3", "parallel.expert=2"}},
      {"Zero3Pipeline", {"parallel.data=2", "parallel.zero=3", "parallel.pipeline=2"}},
      {"Zero3Interleaved", with({"parallel.data=2", "parallel.zero=3"}, interleaved)},
      {"ExpertPipeline", {"parallel.data=2", "parallel.expert=2", "parallel.pipeline=2"}},
      {"ExpertInterleaved", with({"parallel.data=2", "parallel.expert=2"}, interleaved)},
      {"Zero3Tensor", {"parallel.data=2", "parallel.zero=3", "parallel.tensor=2"}},
      {"ExpertTensor", {"parallel.data=2", "parallel.expert=2", "parallel.tensor=2"}},
      {"TensorPipeline", {"parallel.data=1", "parallel.tensor=2", "parallel.pipeline=2"}},
      {"TensorInterleaved", with({"parallel.data=1", "parallel.tensor=2"}, interleaved)},
      // eight ranks
      {"ExpertTensorPipeline",
       {"parallel.data=2", "parallel.expert=2", "parallel.tensor=2", "parallel.pipeline=2"}},
  };
  return all;
}

// Four micro-batches a step, of all data-parallel ranks together.
Settings settings_of(const Pair& pair, const Overrides& more) {
  Overrides all = test::kTinyRun;
  for (const char* one :
       {"model.layers=4", "model.vocab=64", "model.kv_heads=4", "model.tie_embeddings=false",
        "train.micro_batch=1", "train.tokens_per_device=96", "activations.checkpoint=full"})
    all.emplace_back(one);
  all.insert(all.end(), pair.axes.begin(), pair.axes.end());
  for (const std::string& axis : pair.axes)
    if (const Assignment given = parse_override(axis); given.key == "parallel.data")
      all.push_back("train.accumulation=" + std::to_string(4 / std::stoi(given.value.text)));
  all.insert(all.end(), more.begin(), more.end());
  return load_settings({.config = "moe-pico", .overrides = all});
}

class RankPairs : public ::testing::TestWithParam<Pair> {
 protected:
  static bool has_slices() { return settings_of(GetParam(), {}).parallel.tensor > 1; }
};

TEST_P(RankPairs, HaveTheBitsOfOneRank) {
  if (has_slices()) GTEST_SKIP() << "sums over slices are in another order";
  for (const std::string precision : {"fp32", "bf16"})
    test::expect_bits_of_one_rank(settings_of(GetParam(), {"precision.compute=" + precision}), precision);
}

TEST_P(RankPairs, AreCloseToOneRankInFp32) {
  if (!has_slices()) GTEST_SKIP() << "these have its bits";
  for (const int64_t width : {40, 56}) {
    SCOPED_TRACE(width);
    const Settings s = settings_of(GetParam(), test::widths(width));
    const test::Trained want = test::train(test::alone(s), {});
    const std::vector<test::Trained> got = test::train_on(s);
    const double apart = test::difference(got, want);
    EXPECT_LE(apart, 5e-6);
    RecordProperty("difference_" + std::to_string(width), std::to_string(apart * 1e6) + "e-6");
    for (const test::Trained& rank : got) test::expect_close_reports(rank, want, 1e-5);
  }
}

// See TensorTraining.IsAsExactAsOneRankInBf16.
TEST_P(RankPairs, AreAsExactAsOneRankInBf16) {
  if (!has_slices()) GTEST_SKIP() << "these have its bits";
  Overrides more = test::widths(56);
  more.insert(more.end(), {"model.experts=2", "model.experts_per_token=2", "model.dispatch=dropless"});
  const test::Trained want = test::train(test::alone(settings_of(GetParam(), more)), {});
  more.emplace_back("precision.compute=bf16");
  const Settings s = settings_of(GetParam(), more);
  const double of_one = test::difference({test::train(test::alone(s), {})}, want);
  EXPECT_GT(of_one, 1e-5);
  EXPECT_LE(test::difference(test::train_on(s), want), 1.1 * of_one);
}

TEST_P(RankPairs, SendWhatTheDryRunSays) {
  const Settings s = settings_of(GetParam(), {});
  const int64_t ranks = test::layout(s).ranks();
  std::vector<int64_t> predicted;
  for (int64_t r = 0; r < ranks; ++r) predicted.push_back(dry_run_of_rank(s, r, {}).sent_bytes);
  const BatchSource batches = test::random_batches(test::alone(s));
  test::run_ranks(test::layout(s), [&](DataRanks one) {
    Trainer trainer(s, at::kCPU, batches, one);
    trainer.step(0);
    trainer.step(1);
    EXPECT_EQ(test::sent_bytes(one), 2 * predicted[one.control->rank()]) << "rank " << one.control->rank();
  });
}

INSTANTIATE_TEST_SUITE_P(Axes, RankPairs, ::testing::ValuesIn(pairs()),
                         [](const auto& pair) { return pair.param.name; });

}  // namespace
}  // namespace moelab
