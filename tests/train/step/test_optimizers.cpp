#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <limits>

#include "kernels/memory/ledger.h"
#include "moe/settings/error.h"
#include "tests/kernels/reference.h"
#include "tests/train/step/compared_runs.h"
#include "tests/train/step/random_run.h"
#include "train/predict/dry_run.h"
#include "train/settings/convert.h"
#include "train/settings/load.h"
#include "train/settings/validate.h"

// Every optimizer in the trainer: predicted memory, resuming, and optim.in_backward.
namespace moelab {
namespace {

using test::random_batches;

std::vector<Settings> all_optimizers() {
  std::vector<Settings> all;
  for (size_t rule = 0; rule < enum_names(OptimizerName{}).size(); ++rule) {
    for (const bool in_backward : {false, true}) {
      for (const auto checkpoint : {CheckpointMode::none, CheckpointMode::full}) {
        Settings s = test::small_settings();
        s.precision.compute = ComputePrecision::bf16;
        s.optim.name = static_cast<OptimizerName>(rule);
        s.optim.in_backward = in_backward;
        s.activations.checkpoint = checkpoint;
        all.push_back(s);
      }
    }
  }
  return all;
}

std::string name_of(const Settings& s) {
  return value_text(s.optim.name) + " in_backward " + value_text(s.optim.in_backward) + " checkpoint " +
         value_text(s.activations.checkpoint) + " compute " + value_text(s.precision.compute);
}

TEST(Optimizers, DryRunPredictsThePeakOfEach) {
  for (Settings s : all_optimizers()) {
    s.eval.batches = 0;
    const DryRun predicted = dry_run(s);
    const test::MeasuredRun got = test::measured_run(s);
    EXPECT_NEAR(static_cast<double>(predicted.peak) / static_cast<double>(got.device), 1, 0.01) << name_of(s);
    EXPECT_EQ(predicted.state.optimizer, got.state.optimizer) << name_of(s);
  }
}

TEST(Optimizers, EachGoesOnBitwiseFromItsSavedState) {
  for (const Settings& s : all_optimizers()) {
    Trainer first(s, at::kCPU, random_batches(s)), second(s, at::kCPU, random_batches(s));
    for (int64_t step = 0; step < 3; ++step) first.step(step);
    test::carry_over(first, second);
    for (int64_t step = 3; step < 6; ++step)
      EXPECT_EQ(first.step(step).loss, second.step(step).loss) << name_of(s);
    test::expect_equal(first.weights(), second.weights(), name_of(s));
  }
}

TEST(Optimizers, EachLowersTheLossOfARepeatedBatch) {
  for (Settings s : all_optimizers()) {
    if (s.activations.checkpoint != CheckpointMode::none) continue;
    s.train.steps = 30;
    s.optim.lr = 5e-3;
    if (s.optim.name == OptimizerName::lion || s.optim.name == OptimizerName::muon) s.optim.lr = 1e-3;
    if (s.optim.name == OptimizerName::sgd) s.optim.lr = 0.3;
    Trainer trainer(s, at::kCPU, [s](int64_t, int64_t, int64_t) { return test::random_batch(s, 0, 0, 4); });
    const double first = trainer.step(0).loss;
    double last = first;
    for (int64_t step = 1; step < 30; ++step) last = trainer.step(step).loss;
    EXPECT_LT(last, 0.9 * first) << name_of(s);
  }
}

TEST(InBackward, EqualsTheOrdinaryStepBitwiseWithoutClipping) {
  for (Settings s : all_optimizers()) {
    if (!s.optim.in_backward) continue;
    for (const auto compute : {ComputePrecision::fp32, ComputePrecision::bf16}) {
      if (!update_rule_facts(s.optim).keeps_masters() && compute == ComputePrecision::fp32) continue;
      s.precision.compute = compute;
      s.optim.clip = 0;
      Settings ordinary = s;
      ordinary.optim.in_backward = false;
      Trainer a(s, at::kCPU, random_batches(s)), b(ordinary, at::kCPU, random_batches(ordinary));
      for (int64_t step = 0; step < 4; ++step) {
        const StepReport got = a.step(step), want = b.step(step);
        EXPECT_EQ(got.loss, want.loss) << name_of(s);
        EXPECT_EQ(got.gradient_norm, want.gradient_norm) << name_of(s);
        EXPECT_EQ(got.lr, want.lr);
      }
      test::expect_equal(a.weights(), b.weights(), name_of(s));
    }
  }
}

TEST(InBackward, ClipsEachGradientByItsOwnNorm) {
  Settings s = test::small_settings();
  s.optim = {.name = OptimizerName::sgd,
             .lr = 1,
             .min_lr = 1,
             .betas = {0, 0},
             .weight_decay = 0,
             .clip = 1e-3,
             .warmup = 0,
             .in_backward = true};
  Trainer trainer(s, at::kCPU, random_batches(s));
  std::vector<at::Tensor> before;
  for (const TensorEntry& entry : trainer.weights()) before.push_back(entry.tensor.clone());
  trainer.step(0);
  int clipped = 0;
  const auto after = trainer.weights();
  for (size_t i = 0; i < after.size(); ++i) {
    // a weight's rounding in fp32 limits how exactly its move is known
    const double moved = (after[i].tensor.to(at::kDouble) - before[i].to(at::kDouble)).norm().item<double>();
    EXPECT_LE(moved, 1.001e-3) << after[i].name;
    clipped += moved > 0.99e-3;
  }
  EXPECT_GT(clipped, 3);
}

TEST(InBackward, HoldsNoMoreThanOneLayersGradients) {
  install_allocators();
  const auto most_gradients = [](bool in_backward) {
    Settings s = test::small_settings();
    s.model.layers = 8;
    s.optim.in_backward = in_backward;
    return dry_run(s);
  };
  const DryRun ordinary = most_gradients(false), consumed = most_gradients(true);
  EXPECT_LT(consumed.state.gradients, ordinary.state.gradients / 8);
  EXPECT_LT(consumed.phase_peak[static_cast<size_t>(Phase::step)],
            ordinary.phase_peak[static_cast<size_t>(Phase::step)] - ordinary.state.gradients * 3 / 4);
}

TEST(InBackward, ANonFiniteGradientLeavesItsOwnParameterUnstepped) {
  Settings s = test::small_settings();
  s.optim.in_backward = true;
  Trainer trainer(s, at::kCPU, random_batches(s));
  trainer.step(0);
  const std::string hit = "blocks.1.qkv";
  std::vector<at::Tensor> kept;
  for (const TensorEntry& entry : trainer.weights()) kept.push_back(entry.tensor.clone());
  for (Parameter& p : trainer.optimizer().parameters()) {
    if (p.name != hit) continue;
    p.value.register_hook(
        [](const at::Tensor& gradient) { return gradient * std::numeric_limits<float>::infinity(); });
  }
  const std::vector<int64_t> before = trainer.optimizer().steps();
  EXPECT_TRUE(trainer.step(1).skipped);
  for (size_t i = 0; i < before.size(); ++i) {
    const Parameter& p = trainer.optimizer().parameters()[i];
    EXPECT_EQ(trainer.optimizer().steps()[i], before[i] + (p.name == hit ? 0 : 1)) << p.name;
    EXPECT_EQ(static_cast<bool>(test::bitwise_equal(p.value.detach(), kept[i])), p.name == hit) << p.name;
    EXPECT_TRUE(at::isfinite(p.value.detach()).all().item<bool>()) << p.name;
    EXPECT_FALSE(p.value.grad().defined());
  }
}

TEST(Optimizers, ContradictionsNameBothSettings) {
  const auto message = [](std::vector<std::string> overrides) {
    try {
      load_settings({.config = "moe-pico", .overrides = std::move(overrides)});
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto expect_both = [&](const std::vector<std::string>& overrides) {
    const std::string text = message(overrides);
    for (const std::string& part : overrides) EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect_both({"optim.in_backward=true", "train.accumulation=2"});
  expect_both({"optim.name=adamw_compact", "precision.compute=fp32"});
  expect_both({"optim.state=bf16", "optim.name=lion"});
  EXPECT_EQ(message({"optim.state=bf16", "optim.name=adamw"}), "accepted");
}

}  // namespace
}  // namespace moelab
