#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <limits>
#include <string>

#include "kernels/memory/ledger.h"
#include "moe/settings/error.h"
#include "tests/kernels/reference.h"
#include "tests/train/step/compared_runs.h"
#include "tests/train/step/precision_runs.h"
#include "train/predict/dry_run.h"
#include "train/settings/load.h"

// fp16 with its loss scale, and bf16 weights without masters, in the trainer.
namespace moelab {
namespace {

using namespace test;

// fp16 has three more significant bits than bf16, which shows in every operator of the model.
TEST(Fp16, GradientsAreCloserToFp32sThanBf16s) {
  for (const auto dispatch : {Dispatch::capacity, Dispatch::dropless, Dispatch::onehot}) {
    for (const auto attention : {AttentionKernel::flash, AttentionKernel::materialised}) {
      for (const int64_t experts : {4, 0}) {
        Settings s = small_settings();
        s.model.dispatch = dispatch;
        s.model.experts = experts;
        s.model.shared_experts = experts > 0 ? 1 : 0;
        s.model.qk_norm = QkNorm::head;
        s.attention.kernel = attention;
        // every token goes to every expert, so that near ties cannot be routed differently
        s.model.experts_per_token = 4;
        s.model.capacity_factor = 4;
        const auto want = gradients(s, at::kFloat, 1), half = gradients(s, at::kHalf, LossScale::kFirst),
                   bf16 = gradients(s, at::kBFloat16, 1);
        EXPECT_LT(off(half, want), 2e-3) << name_of(s);
        EXPECT_LT(off(half, want), off(bf16, want) / 3) << name_of(s);
      }
    }
  }
}

TEST(Fp16, AnOverflowIsSkippedHalvesTheScaleAndIsForgotten) {
  const Settings s = fp16_settings();
  Trainer clean(s, at::kCPU, random_batches(s)), hit(s, at::kCPU, random_batches(s));
  EXPECT_EQ(hit.step(0).loss_scale, 32768);
  clean.step(0);
  at::Tensor value = hit.model().parameters()[0].value;
  bool poisoned = true;
  value.register_hook([&](const at::Tensor& gradient) {
    return poisoned ? gradient * std::numeric_limits<float>::infinity() : gradient;
  });
  const StepReport skipped = hit.step(1);
  EXPECT_TRUE(skipped.skipped);
  EXPECT_EQ(skipped.loss_scale, 32768);
  test::expect_equal(clean.weights(), hit.weights(), "after the skipped step");
  EXPECT_EQ(hit.optimizer().steps(), clean.optimizer().steps());
  poisoned = false;
  const StepReport next = hit.step(1);
  EXPECT_FALSE(next.skipped);
  EXPECT_EQ(next.loss_scale, 16384);
  // a power of two changes nothing except what is below fp16's range
  const StepReport want = clean.step(1);
  EXPECT_EQ(next.loss, want.loss);
  EXPECT_NEAR(next.gradient_norm / want.gradient_norm, 1, 1e-4);
}

// A scale that is too large for the first step decreases by itself.
TEST(Fp16, BacksOffUntilGradientsAreFinite) {
  Settings s = fp16_settings();
  s.train.steps = 40;
  Trainer trainer(s, at::kCPU, random_batches(s));
  trainer.loss_scale().restore({0x1p30, 0});
  int64_t skipped = 0;
  while (trainer.step(skipped).skipped) ++skipped;
  EXPECT_GT(skipped, 3);
  EXPECT_EQ(trainer.loss_scale().value(), 0x1p30 / std::exp2(skipped));
  EXPECT_EQ(trainer.loss_scale().state().good_steps, 1);
}

TEST(Fp16, GoesOnBitwiseWithItsScale) {
  for (const auto optimizer : rules_with_masters()) {
    for (const int64_t accumulation : {1, 2}) {
      Settings s = fp16_settings();
      s.optim.name = optimizer;
      s.train.accumulation = accumulation;
      s.train.micro_batch = 4 / accumulation;
      Trainer first(s, at::kCPU, random_batches(s)), second(s, at::kCPU, random_batches(s));
      // the scale grows after the second half has begun
      first.loss_scale().restore({512, LossScale::kGrowthInterval - 4});
      for (int64_t step = 0; step < 3; ++step) first.step(step);
      carry_over(first, second);
      for (int64_t step = 3; step < 6; ++step) {
        const StepReport a = first.step(step), b = second.step(step);
        EXPECT_EQ(a.loss, b.loss) << name_of(s);
        EXPECT_EQ(a.gradient_norm, b.gradient_norm) << name_of(s);
        EXPECT_EQ(b.loss_scale, step == 3 ? 512 : 1024) << name_of(s);
      }
      test::expect_equal(first.weights(), second.weights(), name_of(s));
    }
  }
}

// bf16 has fp32's range, so a power of two in the loss changes no bit of the weights.
TEST(Bf16, ALossScaleIsTakenOutExactly) {
  const auto trained = [](Settings s, LossFactor scale) {
    s.precision.loss_scale = scale;
    Trainer trainer(s, at::kCPU, random_batches(s));
    std::vector<double> norms;
    for (int64_t step = 0; step < 3; ++step) {
      const StepReport report = trainer.step(step);
      const double want = scale.dynamic ? LossScale::kFirst : scale.automatic() ? 1 : scale.fixed;
      EXPECT_EQ(report.loss_scale, want) << name_of(s);
      EXPECT_FALSE(report.skipped) << name_of(s);
      norms.push_back(report.gradient_norm);
    }
    return std::pair(trainer.weights(), norms);
  };
  for (const auto optimizer : rules_with_masters()) {
    for (const int64_t accumulation : {1, 2}) {
      for (const auto master : {MasterWeights::fp32, MasterWeights::none}) {
        Settings s = bare_settings(optimizer);
        s.precision.master = master;
        s.train.accumulation = accumulation;
        s.train.micro_batch = 4 / accumulation;
        const auto [want, norms] = trained(s, {});
        for (const LossFactor scale : {LossFactor{0, true}, LossFactor{1024}}) {
          const auto [weights, scaled_norms] = trained(s, scale);
          test::expect_equal(want, weights, name_of(s) + " scale " + value_text(scale));
          EXPECT_EQ(scaled_norms, norms) << name_of(s);
        }
      }
    }
  }
}

TEST(Bf16, AnOverflowHalvesADynamicScale) {
  Settings s = bare_settings();
  s.precision.loss_scale.dynamic = true;
  Trainer trainer(s, at::kCPU, random_batches(s));
  at::Tensor value = trainer.model().parameters()[0].value;
  bool poisoned = true;
  value.register_hook([&](const at::Tensor& gradient) {
    return poisoned ? gradient * std::numeric_limits<float>::infinity() : gradient;
  });
  EXPECT_TRUE(trainer.step(0).skipped);
  poisoned = false;
  const StepReport next = trainer.step(0);
  EXPECT_FALSE(next.skipped);
  EXPECT_EQ(next.loss_scale, 16384);
}

// SGD's step is proportional to the gradient, so a scale left in it would show.
TEST(Fp16, StepsAndClipsByUnscaledGradients) {
  for (const double clip : {0.0, 0.05}) {
    for (const int64_t accumulation : {1, 2}) {
      const auto change = [&](ComputePrecision compute, double loss_scale) {
        Settings s = small_settings();
        s.precision = {.compute = compute, .master = MasterWeights::fp32, .loss_scale = {loss_scale}};
        s.optim.name = OptimizerName::sgd;
        s.optim.clip = clip;
        s.train.accumulation = accumulation;
        s.train.micro_batch = 4 / accumulation;
        Trainer trainer(s, at::kCPU, random_batches(s));
        std::vector<at::Tensor> all;
        for (const TensorEntry& entry : trainer.weights()) all.push_back(entry.tensor.to(at::kDouble));
        EXPECT_GT(trainer.step(0).gradient_norm, clip);
        const std::vector<TensorEntry> after = trainer.weights();
        for (size_t i = 0; i < all.size(); ++i) all[i] = after[i].tensor.to(at::kDouble) - all[i];
        return all;
      };
      const auto want = change(ComputePrecision::fp32, 0);
      for (const double scale : {0.0, 64.0, 1000.0})
        EXPECT_LT(off(change(ComputePrecision::fp16, scale), want), 1e-2) << scale << ", clip " << clip;
    }
  }
}

TEST(Fp16, LearnsAsFp32Does) {
  const double want = learned_loss(small_settings());
  EXPECT_LT(want, 3);  // from 4.1
  EXPECT_NEAR(learned_loss(fp16_settings()) / want, 1, 0.02);
}

TEST(Bf16WithoutMasters, LearnsAsWithThem) {
  Settings masters = bare_settings();
  masters.precision.master = MasterWeights::fp32;
  EXPECT_NEAR(learned_loss(bare_settings()) / learned_loss(masters), 1, 0.05);
}

TEST(Bf16WithoutMasters, GoesOnBitwiseUnderEveryRule) {
  for (const auto optimizer : rules_with_masters()) {
    for (const bool in_backward : {false, true}) {
      Settings s = bare_settings(optimizer);
      s.optim.in_backward = in_backward;
      Trainer straight(s, at::kCPU, random_batches(s)), resumed(s, at::kCPU, random_batches(s));
      resumed.step(0);  // what it holds must not matter
      for (int64_t step = 0; step < 3; ++step) straight.step(step);
      carry_over(straight, resumed);
      for (int64_t step = 3; step < 6; ++step)
        EXPECT_EQ(straight.step(step).loss, resumed.step(step).loss) << name_of(s);
      test::expect_equal(straight.weights(), resumed.weights(), name_of(s));
      for (const Parameter& p : straight.optimizer().parameters())
        EXPECT_EQ(p.master.defined(), p.value.scalar_type() == at::kFloat) << p.name;
    }
  }
}

TEST(Bf16WithoutMasters, TakesTwoBytesAParameterWithItsGradientTwoMore) {
  const Settings s = bare_settings();
  Trainer trainer(s, at::kCPU, random_batches(s));
  double matrices = 0, others = 0;
  for (const Parameter& p : trainer.optimizer().parameters())
    (p.value.scalar_type() == at::kFloat ? others : matrices) += static_cast<double>(p.value.numel());
  const Trainer::StateBytes bytes = trainer.state_bytes();
  EXPECT_NEAR(static_cast<double>(bytes.parameters) / (2 * matrices + 4 * others), 1, 1e-3);
  EXPECT_NEAR(static_cast<double>(bytes.gradients) / (2 * matrices + 4 * others), 1, 1e-3);
  EXPECT_NEAR(static_cast<double>(bytes.optimizer) / (8 * (matrices + others)), 1, 1e-3);
  // and the ledger holds no masters
  install_allocators();
  const auto kind = static_cast<size_t>(Kind::master);
  EXPECT_EQ(dry_run(s).by_kind_at_peak[kind], 0);
  Settings masters = s;
  masters.precision.master = MasterWeights::fp32;
  EXPECT_EQ(static_cast<double>(dry_run(masters).by_kind_at_peak[kind]), 4 * matrices);
}

TEST(Precision, DryRunPredictsThePeakOfEach) {
  install_allocators();
  std::vector<Settings> all;
  for (const auto optimizer : rules_with_masters()) {
    for (const bool recompute : {false, true}) {
      for (Settings s : {fp16_settings(), bare_settings(), fp8_settings()}) {
        s.optim.name = optimizer;
        s.activations.checkpoint = recompute ? CheckpointMode::full : CheckpointMode::none;
        s.train.accumulation = recompute ? 2 : 1;
        s.eval.batches = 0;
        all.push_back(s);
      }
    }
  }
  for (const Settings& s : all) {
    const DryRun predicted = dry_run(s);
    const test::MeasuredRun got = test::measured_run(s);
    EXPECT_NEAR(static_cast<double>(predicted.peak) / static_cast<double>(got.device), 1, 0.01) << name_of(s);
    EXPECT_EQ(predicted.state.parameters, got.state.parameters) << name_of(s);
  }
}

TEST(Precision, ContradictionsNameBothSettings) {
  const auto expect_both = [](const std::vector<std::string>& overrides) {
    std::string text = "accepted";
    try {
      load_settings({.config = "moe-pico", .overrides = overrides});
    } catch (const UserError& error) {
      text = error.what();
    }
    for (const std::string& part : overrides) EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect_both({"optim.in_backward=true", "precision.compute=fp16"});
  expect_both({"precision.master=none", "precision.compute=fp32"});
  expect_both({"precision.master=none", "precision.compute=fp16"});
  expect_both({"precision.loss_scale=128", "precision.compute=fp32"});
  expect_both({"precision.compute=fp8", "model.dispatch=onehot"});
  expect_both({"optim.name=adamw_compact", "precision.compute=fp16"});
  const Settings s = load_settings(
      {.config = "moe-pico",
       .overrides = {"precision.compute=bf16", "precision.master=none", "optim.in_backward=true"}});
  EXPECT_EQ(s.precision.master, MasterWeights::none);
}

}  // namespace
}  // namespace moelab
