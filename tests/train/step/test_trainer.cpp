#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernels/memory/device_memory.h"
#include "kernels/memory/ledger.h"
#include "tests/kernels/reference.h"
#include "tests/train/step/compared_runs.h"
#include "tests/train/step/random_run.h"

namespace moelab {
namespace {

using test::random_batches;
using test::small_settings;

std::vector<at::Tensor> weights(Trainer& trainer) {
  std::vector<at::Tensor> copies;
  for (const TensorEntry& entry : model_state(trainer.model())) copies.push_back(entry.tensor.clone());
  return copies;
}

TEST(Trainer, MicroBatchesAgreeWithOneBatchInEveryDispatch) {
  for (const auto dispatch : {Dispatch::capacity, Dispatch::dropless, Dispatch::onehot}) {
    for (const auto compute : {ComputePrecision::fp32, ComputePrecision::bf16}) {
      Settings whole = small_settings();
      whole.model.dispatch = dispatch;
      whole.precision.compute = compute;
      Settings split = whole;
      split.train.micro_batch = 1;
      split.train.accumulation = 4;
      Trainer one(whole, at::kCPU, random_batches(whole)), four(split, at::kCPU, random_batches(split));
      const StepReport a = one.step(0), b = four.step(0);
      const double tolerance = compute == ComputePrecision::fp32 ? 1e-5 : 1e-2;
      EXPECT_NEAR(a.loss, b.loss, tolerance);
      EXPECT_NEAR(a.balance_loss, b.balance_loss, tolerance);
      EXPECT_NEAR(a.gradient_norm / b.gradient_norm, 1, tolerance);
      EXPECT_EQ(a.dropped_fraction, b.dropped_fraction);
    }
  }
}

TEST(Trainer, LossFallsOnARepeatedBatch) {
  Settings s = small_settings();
  s.train.steps = 40;
  s.optim.lr = 5e-3;
  Trainer trainer(s, at::kCPU, [s](int64_t, int64_t, int64_t) { return test::random_batch(s, 0, 0, 4); });
  const double first = trainer.step(0).loss;
  double last = first;
  for (int64_t step = 1; step < 40; ++step) last = trainer.step(step).loss;
  EXPECT_LT(last, 0.7 * first);
}

TEST(Trainer, ANonFiniteStepIsSkippedAndForgotten) {
  const Settings s = small_settings();
  Trainer clean(s, at::kCPU, random_batches(s)), hit(s, at::kCPU, random_batches(s));
  clean.step(0);
  hit.step(0);
  at::Tensor weight = hit.model().parameters()[0].value.detach();
  const at::Tensor kept = weight.clone();
  weight[3].fill_(std::numeric_limits<float>::infinity());
  const auto before = weights(hit);
  EXPECT_TRUE(hit.step(1).skipped);
  const auto after = weights(hit);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(test::bitwise_equal(after[i], before[i]));
  weight.copy_(kept);
  EXPECT_FALSE(hit.step(1).skipped);
  clean.step(1);
  const auto a = weights(clean), b = weights(hit);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(test::bitwise_equal(a[i], b[i]));
}

TEST(Trainer, StopsBetweenMicroBatchesWithNothingUpdated) {
  Settings s = small_settings();
  s.train.accumulation = 3;
  Trainer trainer(s, at::kCPU, random_batches(s));
  const auto before = weights(trainer);
  int polls = 0;
  EXPECT_TRUE(trainer.step(0, [&] { return ++polls == 3; }).interrupted);
  const auto after = weights(trainer);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(test::bitwise_equal(after[i], before[i]));
}

TEST(Trainer, StopsWhileAMicroBatchIsReadWithNothingUpdated) {
  Settings s = small_settings();
  s.train.accumulation = 3;
  int reads = 0;
  bool asked = false;
  const auto batches = [&, read = random_batches(s)](int64_t step, int64_t first, int64_t rows) {
    asked = ++reads == 3;
    return asked ? Batch{} : read(step, first, rows);
  };
  Trainer trainer(s, at::kCPU, batches);
  const auto before = weights(trainer);
  EXPECT_TRUE(trainer.step(0, [&] { return asked; }).interrupted);
  EXPECT_EQ(reads, 3);
  const auto after = weights(trainer);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(test::bitwise_equal(after[i], before[i]));
  reads = 2;
  EXPECT_THROW(trainer.step(0), c10::Error) << "no batch, and nobody asked";
}

TEST(Trainer, ASmallBudgetThrowsAndLosesNothing) {
  install_allocators();
  const Settings s = small_settings();
  const int64_t before = cpu_ledger().allocated();
  {
    Trainer trainer(s, at::kCPU, random_batches(s));
    const int64_t state = cpu_ledger().allocated();
    set_limit(at::kCPU, state + (64 << 10));
    EXPECT_THROW(trainer.step(0), c10::OutOfMemoryError);
    set_limit(at::kCPU, 0);
    cpu_ledger().clear_refused();
    EXPECT_FALSE(trainer.step(0).skipped);
  }
  EXPECT_EQ(cpu_ledger().allocated(), before);
}

TEST(Trainer, GoesOnBitwiseFromItsSavedState) {
  for (const auto compute : {ComputePrecision::fp32, ComputePrecision::bf16}) {
    Settings s = small_settings();
    s.precision.compute = compute;
    s.model.router = RouterKind::sigmoid;
    Trainer first(s, at::kCPU, random_batches(s)), second(s, at::kCPU, random_batches(s));
    for (int64_t step = 0; step < 3; ++step) first.step(step);
    test::carry_over(first, second);
    for (int64_t step = 3; step < 6; ++step) EXPECT_EQ(first.step(step).loss, second.step(step).loss);
    const auto a = weights(first), b = weights(second);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(test::bitwise_equal(a[i], b[i]));
  }
}

// Recomputation in whole steps: all weights bitwise the same, statistics counted once, less memory.
TEST(Recompute, IsBitwiseNeutralInEveryMode) {
  install_allocators();
  for (const auto dispatch : {Dispatch::capacity, Dispatch::dropless, Dispatch::onehot}) {
    for (const auto router : {RouterKind::softmax, RouterKind::sigmoid, RouterKind::expert_choice}) {
      for (const auto compute : {ComputePrecision::fp32, ComputePrecision::bf16}) {
        if (router == RouterKind::expert_choice && dispatch != Dispatch::capacity) continue;
        Settings plain = small_settings();
        plain.model.dispatch = dispatch;
        plain.model.router = router;
        plain.precision.compute = compute;
        Trainer kept(plain, at::kCPU, random_batches(plain));
        std::vector<StepReport> want;
        for (int64_t step = 0; step < 3; ++step) want.push_back(kept.step(step));
        for (const auto mode : {CheckpointMode::full, CheckpointMode::every, CheckpointMode::layers,
                                CheckpointMode::ratio, CheckpointMode::segments}) {
          Settings s = plain;
          s.activations = {mode, 2, {1, 3}, 0.5};
          Trainer recomputed(s, at::kCPU, random_batches(s));
          for (int64_t step = 0; step < 3; ++step) {
            const StepReport got = recomputed.step(step);
            EXPECT_EQ(got.loss, want[step].loss);
            EXPECT_EQ(got.gradient_norm, want[step].gradient_norm);
            EXPECT_EQ(got.load_entropy, want[step].load_entropy);
            EXPECT_EQ(got.dropped_fraction, want[step].dropped_fraction);
          }
          const auto a = weights(kept), b = weights(recomputed);
          for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(test::bitwise_equal(a[i], b[i]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace moelab
