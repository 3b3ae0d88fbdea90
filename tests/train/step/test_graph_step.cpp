#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels/memory/device_memory.h"
#include "kernels/operator/variants.h"
#include "moe/settings/error.h"
#include "tests/cuda_device.h"
#include "tests/train/settings/overrides.h"
#include "tests/train/step/compared_runs.h"
#include "tests/train/step/random_run.h"
#include "train/predict/dry_run.h"
#include "train/step/step_graph.h"
#include "train/step/trainer.h"

// Compares the step in a CUDA graph with the ordinary step. On a GPU it is captured and replayed; on the CPU
// it is launched directly, which tests everything except the capture.
namespace moelab {
namespace {

using test::Overrides, test::operator+;

Settings settings_with(const Overrides& overrides, CudaGraphs graphs) {
  const Overrides own = {"train.steps=10", "optim.warmup=3", "optim.lr=1e-2", "model.dispatch=capacity"};
  Settings s = test::pico_settings(test::kSmallGpuRun + own + overrides);
  s.memory.cuda_graphs = graphs;  // refused on the CPU
  return s;
}

std::vector<Overrides> variants() {
  return {{},
          {"optim.clip=0.05", "train.accumulation=3"},
          {"precision.compute=bf16", "activations.checkpoint=full", "train.accumulation=2"},
          {"precision.compute=bf16", "activations.checkpoint=segments", "activations.every=2",
           "train.accumulation=2", "precision.gradient_sums=bf16"},
          {"precision.compute=bf16", "precision.master=none", "optim.state=bf16"},
          {"precision.compute=bf16", "activations.pieces=[norms,expert_hidden]", "activations.storage=int8"},
          {"precision.compute=bf16", "model.router=sigmoid", "model.shared_experts=1"},
          {"precision.compute=fp16"},
          {"precision.compute=bf16", "attention.kernel=sliding_window", "attention.window=8"},
          {"model.experts=0", "attention.kernel=materialised"},
          {"precision.compute=bf16", "optim.name=adam8bit"},
          {"precision.compute=bf16", "optim.name=adamw_compact"},
          {"precision.compute=bf16", "optim.name=adam_mini"},
          {"precision.compute=bf16", "precision.master=none", "optim.name=lion"},
          {"precision.compute=bf16", "optim.name=adafactor"},
          {"precision.compute=bf16", "optim.name=sgd"}};
}

void expect_alike(const StepReport& got, const StepReport& want, const std::string& where) {
  EXPECT_EQ(got.skipped, want.skipped) << where;
  EXPECT_EQ(got.lr, want.lr) << where;
  EXPECT_EQ(got.loss_scale, want.loss_scale) << where;
  EXPECT_EQ(got.micro_batch, want.micro_batch) << where;
  EXPECT_EQ(got.tokens, want.tokens) << where;
  EXPECT_EQ(got.places, want.places) << where;
  EXPECT_EQ(got.pairs, want.pairs) << where;
  EXPECT_EQ(got.dropped_fraction, want.dropped_fraction) << where;
  EXPECT_EQ(got.load_entropy, want.load_entropy) << where;
  if (want.skipped) return;  // some numbers are NaN then
  EXPECT_EQ(got.loss, want.loss) << where;
  EXPECT_EQ(got.balance_loss, want.balance_loss) << where;
  EXPECT_EQ(got.z_loss, want.z_loss) << where;
  EXPECT_EQ(got.gradient_norm, want.gradient_norm) << where;
}

// A weight of the final norm, which does not affect routing.
at::Tensor poisoned_weight(Trainer& trainer) {
  for (const Parameter& p : trainer.model().parameters())
    if (p.name == "final_norm") return p.value.detach()[5];
  throw std::logic_error("no final norm");
}

class GraphStep : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override {
    MOELAB_NEEDS(c10::Device(GetParam()));
    before_ = at::globalContext().deterministicAlgorithms();
    at::globalContext().setDeterministicAlgorithms(true, false);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(before_, false); }
  c10::Device device() const {
    return GetParam() == at::kCUDA ? c10::Device(at::kCUDA, 0) : c10::Device(at::kCPU);
  }

 private:
  bool before_ = false;
};

// Ten steps, one of them not finite. On CUDA two steps are launched before the graph is captured, and two
// again after the split changes.
void expect_the_launched_bits(const Overrides& variant, c10::Device device) {
  const std::string name = ::testing::PrintToString(variant);
  const Settings s = settings_with(variant, CudaGraphs::none);
  Trainer launched(s, device, test::random_batches(s)),
      captured(settings_with(variant, CudaGraphs::step), device, test::random_batches(s));
  const int64_t rows = s.train.micro_batch * s.train.accumulation,
                cut = s.train.micro_batch > 1 ? s.train.micro_batch / 2 : 2;
  for (int64_t step = 0; step < 10; ++step) {
    const std::string where = name + " step " + std::to_string(step);
    if (step == 6) {
      for (Trainer* trainer : {&launched, &captured}) trainer->set_split(cut, rows / cut);
    }
    std::vector<at::Tensor> poisoned, kept;
    for (Trainer* trainer : {&launched, &captured}) {
      poisoned.push_back(poisoned_weight(*trainer));
      kept.push_back(poisoned.back().clone());
      if (step == 4) poisoned.back().fill_(std::nan(""));
    }
    const StepReport want = launched.step(step), got = captured.step(step);
    expect_alike(got, want, where);
    EXPECT_EQ(got.skipped, step == 4 || (got.skipped && s.precision.compute == ComputePrecision::fp16))
        << where;
    if (step == 4) poisoned[0].copy_(kept[0]), poisoned[1].copy_(kept[1]);
  }
  EXPECT_EQ(captured.optimizer().steps(), launched.optimizer().steps()) << name;
  test::expect_equal(captured.weights(), launched.weights(), name);
  test::expect_equal(captured.optimizer_state(), launched.optimizer_state(), name);
}

TEST_P(GraphStep, HasTheBitsOfTheLaunchedOne) {
  for (const Overrides& variant : variants()) {
    expect_the_launched_bits(variant, device());
    if (HasFailure()) return;
  }
}

// Each step has rows of other documents and other shares of the step's tokens: the graph must read them from
// where they are copied.
TEST_P(GraphStep, TakesPackedRows) {
  const Overrides packed = {"train.tokens_per_device=90", "train.micro_batch=1", "train.accumulation=2",
                            "model.layers=2"};
  for (Overrides more :
       {Overrides{},
        {"precision.compute=bf16", "activations.checkpoint=full"},
        {"precision.compute=bf16", "attention.kernel=sliding_window", "attention.window=8"}}) {
    more.insert(more.begin(), packed.begin(), packed.end());
    expect_the_launched_bits(more, device());
  }
}

// Dropless experts have fixed shapes where one product takes all experts' rows. With the plain variant the
// host would have to wait, and the run is refused.
TEST_P(GraphStep, TakesDroplessExpertsWhereTheirShapesAreFixed) {
  const Overrides dropless = {"precision.compute=bf16", "model.dispatch=dropless"};
  expect_the_launched_bits(dropless, device());
  if (device().is_cpu()) return;
  const KernelChoice before = kernels_in_use();
  use_kernels({});
  const Settings launched = settings_with(dropless, CudaGraphs::none),
                 s = settings_with(dropless, CudaGraphs::step);
  EXPECT_TRUE(std::isfinite(Trainer(launched, device(), test::random_batches(launched)).step(0).loss));
  EXPECT_THROW(Trainer(s, device(), test::random_batches(s)), UserError);
  use_kernels(before);
}

// The scale doubles after the step has been captured, and halves if that was too much.
TEST_P(GraphStep, FollowsTheLossScale) {
  const Settings s = settings_with({"precision.compute=fp16"}, CudaGraphs::none);
  Trainer launched(s, device(), test::random_batches(s)),
      captured(settings_with({"precision.compute=fp16"}, CudaGraphs::step), device(),
               test::random_batches(s));
  std::set<double> scales;
  for (int64_t step = 0; step < 10; ++step) {
    if (step % 3 == 0) {
      const LossScale::State next{step < 6 ? 1024.0 : 0x1p40, LossScale::kGrowthInterval - 2};
      for (Trainer* trainer : {&launched, &captured}) trainer->loss_scale().restore(next);
    }
    const StepReport want = launched.step(step), got = captured.step(step);
    expect_alike(got, want, "step " + std::to_string(step));
    EXPECT_EQ(got.skipped, step >= 6) << step;
    scales.insert(got.loss_scale);
  }
  EXPECT_GE(scales.size(), 4u);
  test::expect_equal(captured.weights(), launched.weights(), "weights");
}

// A checkpoint does not depend on how the steps were run.
TEST_P(GraphStep, GoesOnFromACheckpointOfTheOther) {
  const Overrides variant = {"precision.compute=bf16", "model.router=sigmoid"};
  const Settings s = settings_with(variant, CudaGraphs::none),
                 graphs = settings_with(variant, CudaGraphs::step);
  Trainer whole(s, device(), test::random_batches(s)), first(s, device(), test::random_batches(s)),
      second(graphs, device(), test::random_batches(s)), third(s, device(), test::random_batches(s));
  for (int64_t step = 0; step < 10; ++step) whole.step(step);
  for (int64_t step = 0; step < 3; ++step) first.step(step);
  test::carry_over(first, second);
  for (int64_t step = 3; step < 7; ++step) second.step(step);
  test::carry_over(second, third);
  for (int64_t step = 7; step < 10; ++step) third.step(step);
  test::expect_equal(third.weights(), whole.weights(), "weights");
}

TEST_P(GraphStep, AnEvaluationBetweenTwoStepsChangesNothing) {
  const Settings s = settings_with({"precision.compute=bf16"}, CudaGraphs::step);
  Trainer alone(s, device(), test::random_batches(s)), watched(s, device(), test::random_batches(s));
  const auto batch = [&](int64_t i) { return test::random_batch(s, 100 + i, 0, 4); };
  for (int64_t step = 0; step < 6; ++step) {
    EXPECT_EQ(watched.step(step).loss, alone.step(step).loss) << step;
    EXPECT_TRUE(std::isfinite(watched.evaluate(batch, 2)));
  }
  test::expect_equal(watched.weights(), alone.weights(), "weights");
}

TEST_P(GraphStep, StopsBeforeAStep) {
  const Settings s = settings_with({}, CudaGraphs::step);
  Trainer trainer(s, device(), test::random_batches(s));
  const auto before = trainer.step(0).loss;
  EXPECT_TRUE(trainer.step(1, [] { return true; }).interrupted);
  EXPECT_NE(trainer.step(1).loss, before);
  EXPECT_EQ(trainer.optimizer().steps().front(), 2);
}

TEST_P(GraphStep, StopsWhileAMicroBatchIsReadAndGoesOn) {
  const Settings s = settings_with({}, CudaGraphs::step);
  bool asked = false;
  const auto batches = [&, read = test::random_batches(s)](int64_t step, int64_t first, int64_t rows) {
    return asked ? Batch{} : read(step, first, rows);
  };
  Trainer trainer(s, device(), batches), clean(s, device(), test::random_batches(s));
  trainer.step(0);
  clean.step(0);
  asked = true;
  int polls = 0;  // the first is before the step
  EXPECT_TRUE(trainer.step(1, [&] { return ++polls == 2; }).interrupted);
  asked = false;
  EXPECT_EQ(trainer.step(1).loss, clean.step(1).loss);
}

INSTANTIATE_TEST_SUITE_P(Devices, GraphStep, ::testing::Values(at::kCPU, at::kCUDA), [](const auto& info) {
  return std::string(info.param == at::kCUDA ? "Cuda" : "Cpu");
});

// A refusal in the middle of a step leaves the state as it was.
TEST(GraphStepOnTheCpu, RunsOutOfMemoryAndGoesOn) {
  install_allocators();
  const Settings s = settings_with({}, CudaGraphs::step);
  Trainer clean(s, at::kCPU, test::random_batches(s)), hit(s, at::kCPU, test::random_batches(s));
  clean.step(0);
  hit.step(0);
  set_limit(at::kCPU, cpu_ledger().allocated() + (64 << 10));
  EXPECT_THROW(hit.step(1), c10::OutOfMemoryError);
  set_limit(at::kCPU, 0);
  cpu_ledger().clear_refused();
  EXPECT_TRUE(hit.abandon_step());
  EXPECT_EQ(hit.step(1).loss, clean.step(1).loss);
  test::expect_equal(hit.weights(), clean.weights(), "weights");
}

TEST(GraphStepOnTheCpu, IsPredictedByADryRun) {
  for (const Overrides& variant :
       {Overrides{},
        {"precision.compute=bf16", "train.accumulation=2"},
        {"precision.compute=bf16", "train.tokens_per_device=300", "train.micro_batch=1"}}) {
    const Settings s = settings_with(variant, CudaGraphs::step);
    const auto measured = static_cast<double>(test::measured_run(s).device);
    EXPECT_NEAR(static_cast<double>(dry_run(s).peak), measured, 0.01 * measured);
  }
}

// On a stream of its own, which neither reads what is queued before too early nor what comes after.
TEST(StepGraphCuda, RunsBetweenWhatIsQueuedBeforeAndBehind) {
  MOELAB_NEEDS_CUDA();
  const c10::Device device(c10::kCUDA, 0);
  const at::Tensor x = at::zeros({1 << 16}, at::TensorOptions(device).dtype(at::kFloat));
  at::Tensor y = at::zeros_like(x);
  StepGraph graph(device);
  for (int i = 1; i <= 12; ++i) {
    x.fill_(i);
    graph.run([&] { at::mul_out(y, x, x); });
    x.fill_(-1);
    if (i == 6) graph.forget();
    EXPECT_TRUE(y.cpu().eq(i * i).all().item<bool>()) << i;
  }
}

// LibTorch's allocator calls free what a captured step takes while it is replayed.
TEST(StepGraphCuda, AReplaysMemoryIsInThePeak) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  const c10::Device device(c10::kCUDA, 0);
  constexpr int64_t kBytes = 64 << 20;
  at::Tensor sum = at::zeros({}, at::TensorOptions(device).dtype(at::kFloat));
  StepGraph graph(device);
  const auto peak_of_run = [&] {
    const int64_t before = device_memory(device).allocated;
    reset_peaks(device);
    graph.run([&] { sum.copy_(at::ones({kBytes / 4}, sum.options()).sum()); });
    return device_memory(device).peak - before;
  };
  for (int run = 0; run < 6; ++run) {
    const int64_t peak = peak_of_run();
    EXPECT_GE(peak, kBytes) << run;
    EXPECT_LT(peak, 2 * kBytes) << run;
  }
  graph.forget();
  reset_peaks(device);
  EXPECT_EQ(device_memory(device).peak, device_memory(device).allocated);
}

}  // namespace
}  // namespace moelab
