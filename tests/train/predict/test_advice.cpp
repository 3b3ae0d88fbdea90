#include "train/predict/advice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace moelab {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

std::vector<std::string> names(const std::vector<Advice>& advice) {
  std::vector<std::string> result;
  for (const Advice& a : advice) result.push_back(a.setting);
  return result;
}

Settings hungry() {
  Settings s;
  s.attention.kernel = AttentionKernel::materialised;
  s.model.dispatch = Dispatch::onehot;
  s.train.micro_batch = 12;
  s.train.accumulation = 1;
  s.train.sequence = 256;
  s.memory.limit.count = 100 * kMiB;
  return s;
}

// A toy memory model, to check which change was predicted for which line.
int64_t toy_peak(const Settings& s) {
  int64_t mib = 10 * s.train.micro_batch + s.train.sequence / 4 + s.model.layers;
  if (s.attention.kernel == AttentionKernel::materialised) mib += 50;
  if (s.activations.checkpoint != CheckpointMode::full) mib += 200;
  if (s.model.dispatch == Dispatch::onehot) mib += 30;
  if (s.placement.optimizer == Home::host) mib -= 40;
  if (s.placement.gradients == Home::host) mib -= 10;
  return mib * kMiB;  // precision changes nothing here
}

TEST(Advice, TriesEachChangeAloneInTheGuidesOrder) {
  const auto advice = advise(hungry(), toy_peak, 0);
  EXPECT_EQ(names(advice),
            (std::vector<std::string>{"attention.kernel=flash", "activations.checkpoint=full",
                                      "train.micro_batch=1 train.accumulation=12", "model.dispatch=capacity",
                                      "train.sequence=32", "model.layers=2", "placement.optimizer=host",
                                      "placement.gradients=host", "memory.limit=470MiB"}));
  EXPECT_EQ(advice[0].predicted_peak, 420 * kMiB);
  EXPECT_EQ(advice[1].predicted_peak, 270 * kMiB);
  EXPECT_EQ(advice[2].predicted_peak, 360 * kMiB);
  EXPECT_EQ(advice[2].saves, 110 * kMiB);
  EXPECT_FALSE(advice[2].fits);
  EXPECT_EQ(advice[6].saves, 40 * kMiB);
  EXPECT_EQ(advice[7].saves, 10 * kMiB);
  EXPECT_TRUE(advice.back().fits);
}

TEST(Advice, StopsAtTheFirstMicroBatchThatFits) {
  Settings s = hungry();
  s.activations.checkpoint = CheckpointMode::full;  // 270 MiB now
  const auto advice = advise(s, toy_peak, 186 * kMiB);
  const auto found = std::find_if(advice.begin(), advice.end(),
                                  [](const Advice& a) { return a.setting.starts_with("train.micro_batch"); });
  ASSERT_NE(found, advice.end());
  EXPECT_EQ(found->setting, "train.micro_batch=3 train.accumulation=4");  // 6 would need 210 MiB
  EXPECT_EQ(found->predicted_peak, 180 * kMiB);
  EXPECT_TRUE(found->fits);
}

TEST(Advice, PackedRowsAreHalvedAtTheSameTokensAStep) {
  Settings s;
  s.train.tokens_per_device = 1000;
  s.train.micro_batch = 1;
  s.train.accumulation = 3;
  const auto by_row = [](const Settings& changed) { return changed.train.row() * kMiB; };
  const auto rows = [&](const std::vector<Advice>& advice) {
    std::vector<std::string> found = names(advice);
    std::erase_if(found, [](const std::string& name) { return !name.starts_with("train."); });
    return found;
  };
  EXPECT_EQ(rows(advise(s, by_row, 300 * kMiB)),
            std::vector<std::string>{"train.tokens_per_device=250 train.accumulation=12"});
  EXPECT_EQ(rows(advise(s, by_row, 1)),
            std::vector<std::string>{"train.tokens_per_device=62 train.accumulation=48"});
  s.optim.in_backward = true;
  EXPECT_TRUE(rows(advise(s, by_row, 1)).empty());
}

TEST(Advice, LeavesOutWhatIsAlreadyOn) {
  Settings s;
  s.attention.kernel = AttentionKernel::flash;
  s.precision.compute = ComputePrecision::bf16;
  s.activations.checkpoint = CheckpointMode::full;
  s.train.micro_batch = 1;
  s.train.sequence = 32;
  s.model.layers = 3;
  s.model.d_model = 160;
  s.model.experts = 2;
  s.model.experts_per_token = 1;
  s.model.capacity_factor = 1;
  s.parallel.zero = 3;
  s.activations.storage = ActivationStorage::host;
  s.placement.parameters = s.placement.optimizer = Home::host;
  s.placement.gradients = Home::nvme;
  EXPECT_TRUE(advise(s, {}, 0).empty());
  s.placement.gradients = Home::device;
  EXPECT_EQ(names(advise(s, {}, 0)), std::vector<std::string>{"placement.gradients=host"});
  s.optim.in_backward = true;  // consumes each gradient at once
  EXPECT_TRUE(advise(s, {}, 0).empty());
  s.model.experts = 0;
  s.model.dispatch = Dispatch::onehot;  // means nothing without experts
  EXPECT_TRUE(advise(s, {}, 0).empty());
}

TEST(Advice, WithoutAPredictionListsSettingsAlone) {
  const auto failing = [](const Settings&) -> int64_t { throw std::runtime_error("no dry run"); };
  for (const PredictPeak& predict : {PredictPeak{}, PredictPeak{failing}}) {
    const auto advice = advise(hungry(), predict);
    EXPECT_EQ(names(advice),
              (std::vector<std::string>{
                  "attention.kernel=flash", "precision.compute=bf16", "activations.checkpoint=full",
                  "train.micro_batch=6 train.accumulation=2", "model.dispatch=capacity", "train.sequence=128",
                  "parallel.data=2 parallel.zero=1", "model.layers=4", "model.d_model=288", "model.experts=2",
                  "model.experts_per_token=1", "model.capacity_factor=1", "activations.storage=host",
                  "placement.optimizer=host", "placement.gradients=host", "placement.parameters=host"}));
    for (const Advice& a : advice) EXPECT_FALSE(a.fits || a.predicted_peak != 0);
  }
}

// Each with the peak of its own change: 512 KiB a unit of width, routes and places at experts, and the state
// of which ranks have parts.
TEST(Advice, NamesWidthRoutesCapacityAndRanksWithTheirPeaks) {
  Settings s = hungry();
  s.model.d_model = 512;
  s.model.experts_per_token = 3;
  s.memory.cuda_graphs = CudaGraphs::step;  // which ranks do without
  const auto peak = [](const Settings& changed) {
    const bool captured = changed.memory.cuda_graphs != CudaGraphs::none;
    const int64_t state = changed.parallel.zero == 0   ? 600
                          : changed.parallel.zero == 1 ? 500
                          : captured                   ? 600
                                                       : 300;
    const double routes = 100 * changed.model.capacity_factor * double(changed.model.experts_per_token);
    return (changed.model.d_model / 2 + state + static_cast<int64_t>(routes)) * kMiB;
  };
  const auto found = [&](int64_t limit, const std::string& setting) {
    for (const Advice& one : advise(s, peak, limit * kMiB))
      if (one.setting == setting) return one.predicted_peak / kMiB;
    return int64_t{0};
  };
  EXPECT_EQ(peak(s) / kMiB, 1231);
  EXPECT_EQ(found(1200, "model.d_model=384"), 1167);
  EXPECT_EQ(found(1120, "model.d_model=288"), 1119);
  EXPECT_EQ(found(1200, "model.experts_per_token=2"), 1106);
  EXPECT_EQ(found(1000, "model.experts_per_token=1"), 981);
  EXPECT_EQ(found(1200, "model.capacity_factor=1"), 1156);
  EXPECT_EQ(found(1200, "parallel.data=2 parallel.zero=1 memory.cuda_graphs=none"), 1131);
  EXPECT_EQ(found(1000, "parallel.data=2 parallel.zero=3 memory.cuda_graphs=none"), 931);
}

TEST(Advice, SaysWhatWasRefusedAndHeld) {
  Refusal refusal{12 * kMiB, 500 * kMiB, 512 * kMiB - 1, Phase::backward};
  refusal.by_kind[static_cast<size_t>(Kind::gradients)] = 100 * kMiB;
  refusal.by_kind[static_cast<size_t>(Kind::attention)] = 150 * kMiB;
  refusal.by_kind[static_cast<size_t>(Kind::activations)] = 250 * kMiB;
  EXPECT_EQ(
      refusal_message(refusal,
                      {{"activations.checkpoint=full", 300 * kMiB, 200 * kMiB, true},
                       {"train.sequence=128", 600 * kMiB, 0, false}},
                      "at the first step"),
      "out of memory in backward: 12.0 MiB more was needed, 12.0 MiB of the limit of 512.0 MiB was free\n"
      "held then: activations 400.0 MiB, gradients 100.0 MiB\n"
      "likely cause, at the first step\n"
      "what would be enough, each by itself:\n"
      "  activations.checkpoint=full  peak 300.0 MiB, saves 200.0 MiB\n");
  EXPECT_EQ(refusal_message(Refusal{}, {}), "out of memory in init\n");
}

// The guides' table: at step 0, after N steps, in evaluation, with long sequences, now and then.
TEST(Advice, NamesTheLikelyCauseBySymptom) {
  Settings s;
  Refusal refusal;
  refusal.by_kind[static_cast<size_t>(Kind::attention)] = 10;
  const auto cause = [&](const Symptom& symptom) { return likely_cause(s, refusal, symptom); };
  EXPECT_EQ(cause({}), "at the first step: the model or its micro-batch is too large for the budget");
  s.eval.micro_batch = 64;
  EXPECT_EQ(cause({5, true, 0, 0, false}), "in evaluation: its batch is too large, eval.micro_batch=64");
  EXPECT_EQ(cause({5, false, 0, 0, true}), "after 5 steps: a leak, what is held has grown");
  EXPECT_EQ(cause({5, false, 0, 0.31, false}),
            "after 5 steps: fragmentation, 31% of what is reserved is in pieces; set "
            "memory.empty_cache_every=50");
  EXPECT_EQ(cause({5, false, 0, 0, false}), "after 5 steps: the run was at the edge of its budget");
  EXPECT_EQ(cause({5, false, 3, 0, false}), "now and then: the run was at the edge of its budget");
  s.model.dispatch = Dispatch::dropless;
  EXPECT_EQ(cause({5, false, 3, 0, false}),
            "now and then: the experts' load varies with model.dispatch=dropless");
  s.attention.kernel = AttentionKernel::materialised;
  s.train.sequence = 4096;
  EXPECT_EQ(cause({5, false, 3, 0, false}),
            "attention is quadratic in train.sequence=4096 with attention.kernel=materialised");
  refusal.by_kind[static_cast<size_t>(Kind::gradients)] = 20;  // more than the scores
  EXPECT_NE(cause({}).find("at the first step"), std::string::npos);
}

}  // namespace
}  // namespace moelab
