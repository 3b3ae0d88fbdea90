#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/memory/ledger.h"
#include "tests/train/settings/overrides.h"
#include "tests/train/step/random_run.h"
#include "train/predict/dry_run.h"

// Sums of bf16 gradients over micro-batches (precision.gradient_sums).
namespace moelab {
namespace {

using test::Overrides, test::operator+;

constexpr int64_t kMicroBatches = 32;

// A step of plain gradient descent at a rate of 1 takes the gradient away from the weights.
Settings settings_with(const Overrides& overrides) {
  const Overrides descent = {
      "precision.compute=bf16", "optim.name=sgd",       "optim.betas=[0, 0.95]", "optim.lr=1",
      "optim.min_lr=1",         "optim.weight_decay=0", "optim.clip=0",          "optim.warmup=0",
      "train.micro_batch=1",    "model.layers=2"};
  return test::pico_settings(test::kSmallRun + descent + overrides);
}

// In float64: by how much the first step, on these micro-batches, changes each weight, one after another.
at::Tensor change_of_weights(const Settings& s, const BatchSource& batches) {
  Trainer trainer(s, at::kCPU, batches);
  const auto weights = [&] {
    std::vector<at::Tensor> all;
    for (const TensorEntry& entry : trainer.weights()) all.push_back(entry.tensor.to(at::kDouble).flatten());
    return at::cat(all);
  };
  const at::Tensor before = weights();
  EXPECT_FALSE(trainer.step(0).skipped);
  return before - weights();
}

// Beside the float64 mean of the same bf16 gradients, each of which a step with one micro-batch gives. A sum
// of n terms whose partial sums are rounded to half a unit u of the last of 8 bits is off by (n - 1) u of the
// largest partial sum at most; random errors add up to about its root.
TEST(GradientSums, Bf16RoundsAtEachMicroBatchAndFp32HardlyDoes) {
  install_allocators();
  const Settings one = settings_with({});
  const BatchSource batches = test::random_batches(settings_with({"train.accumulation=32"}));
  at::Tensor exact;
  for (int64_t i = 0; i < kMicroBatches; ++i) {
    const at::Tensor part =
        change_of_weights(one, [&](int64_t, int64_t, int64_t count) { return batches(0, i, count); });
    exact = exact.defined() ? exact + part : part;
  }
  exact = exact / kMicroBatches;
  const auto error = [&](const std::string& sums) {
    const Settings s = settings_with({"train.accumulation=32", "precision.gradient_sums=" + sums});
    return ((change_of_weights(s, batches) - exact).norm() / exact.norm()).item<double>();
  };
  const double unit = std::ldexp(1.0, -9), fp32 = error("fp32"), bf16 = error("bf16");
  RecordProperty("relative_error_fp32", std::to_string(fp32));
  RecordProperty("relative_error_bf16", std::to_string(bf16));
  EXPECT_LT(fp32, unit / 100);
  EXPECT_GT(bf16, unit);
  EXPECT_LT(bf16, (kMicroBatches - 1) * unit);
}

// Of P weights, those outside of norms and routers.
TEST(GradientSums, TakeTwoBytesAWeightAsPredicted) {
  install_allocators();
  const auto gradients = [](const Settings& s) {
    const DryRun predicted = dry_run(s);
    const test::MeasuredRun got = test::measured_run(s);
    EXPECT_NEAR(static_cast<double>(predicted.peak), static_cast<double>(got.device), 0.01 * predicted.peak);
    return predicted.by_kind_at_peak[static_cast<size_t>(Kind::gradients)];
  };
  const Overrides large = {"train.accumulation=2", "eval.batches=0", "model.vocab=4096", "train.sequence=8"};
  const int64_t fp32 = gradients(settings_with(large)),
                bf16 = gradients(settings_with(large + Overrides{"precision.gradient_sums=bf16"}));
  EXPECT_GT(bf16, 0);
  EXPECT_NEAR(static_cast<double>(bf16) / static_cast<double>(fp32), 0.5, 0.02);
}

}  // namespace
}  // namespace moelab
