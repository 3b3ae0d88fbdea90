// Training steps over packed rows: memory is predicted, and splitting or recomputing the step changes
// nothing.
#include <gtest/gtest.h>

#include "kernels/memory/device_memory.h"
#include "kernels/meta/simulated_device.h"
#include "tests/kernels/reference.h"
#include "tests/train/step/compared_runs.h"
#include "tests/train/step/random_run.h"
#include "train/predict/dry_run.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

using test::random_batches;

Settings packed_settings() {
  Settings s = test::small_settings();
  s.model.dispatch = Dispatch::dropless;
  s.train.micro_batch = 1;
  s.train.tokens_per_device = 90;
  return s;
}

TEST(PackedStep, IsTheSameHoweverItsRowsAreCut) {
  for (const auto dispatch : {Dispatch::dropless, Dispatch::capacity, Dispatch::onehot}) {
    Settings one = packed_settings();
    one.model.dispatch = dispatch;
    one.train.accumulation = 4;
    Trainer a(one, at::kCPU, random_batches(one)), b(one, at::kCPU, random_batches(one));
    b.set_split(2, 2);
    const StepReport by_one = a.step(0), by_two = b.step(0);
    EXPECT_LT(by_one.tokens, by_one.places);
    EXPECT_EQ(by_one.tokens, by_two.tokens);
    EXPECT_EQ(by_one.places, 4 * 90);
    EXPECT_EQ(by_one.fill(), by_two.fill());
    EXPECT_NEAR(by_one.loss, by_two.loss, 1e-5);
    EXPECT_NEAR(by_one.balance_loss, by_two.balance_loss, 1e-5);
    EXPECT_NEAR(by_one.z_loss, by_two.z_loss, 1e-5);
    EXPECT_NEAR(by_one.gradient_norm / by_two.gradient_norm, 1, 1e-5);
    EXPECT_EQ(by_one.dropped_fraction, by_two.dropped_fraction);
  }
}

// Rows are weighted by their tokens; the mean of the rows' means would be another number.
TEST(PackedStep, WeighsTokensAndNotRows) {
  Settings s = packed_settings();
  s.train.accumulation = 4;
  const auto even = [&](int64_t step, int64_t first, int64_t rows) {
    Batch batch = test::random_batch(s, step, first, rows);
    batch.share = 0.25;
    return batch;
  };
  Trainer by_tokens(s, at::kCPU, random_batches(s)), by_rows(s, at::kCPU, even);
  Settings whole = s;
  Trainer together(whole, at::kCPU, random_batches(s));
  together.set_split(4, 1);
  const double want = together.step(0).loss;
  EXPECT_NEAR(by_tokens.step(0).loss, want, 1e-5);
  EXPECT_GT(std::abs(by_rows.step(0).loss - want), 1e-4);
}

TEST(PackedStep, RecomputationReplaysItBitByBit) {
  const auto after = [](const std::function<void(Settings&)>& change) {
    Settings s = packed_settings();
    s.precision.compute = ComputePrecision::bf16;
    change(s);
    Trainer trainer(s, at::kCPU, random_batches(s));
    trainer.step(0);
    trainer.step(1);
    return trainer.weights();
  };
  const auto kept = after([](Settings&) {});
  test::expect_equal(kept, after([](Settings& s) { s.activations.checkpoint = CheckpointMode::full; }),
                     "full");
  test::expect_equal(kept, after([](Settings& s) {
                       s.activations.pieces = {Piece::norms, Piece::attention, Piece::moe};
                     }),
                     "pieces");
}

// Unused rows of the experts' hidden state are in memory that was never written; compression must not treat
// them as values.
TEST(PackedStep, CompressesNothingThatWasNotWritten) {
  const auto losses = [] {
    Settings s = packed_settings();
    s.activations.storage = ActivationStorage::int8;
    Trainer trainer(s, at::kCPU, random_batches(s));
    return std::pair{trainer.step(0).gradient_norm, trainer.step(1).loss};
  };
  const auto want = losses();
  at::globalContext().setDeterministicAlgorithms(true, true);  // fills new tensors: bytes with 255, a NaN
  const auto got = losses();
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_EQ(got, want);
}

TEST(PackedDryRun, PredictsTheMeasuredPeak) {
  const std::vector<std::function<void(Settings&)>> changes = {
      [](Settings&) {},
      [](Settings& s) { s.model.dispatch = Dispatch::capacity; },
      [](Settings& s) { s.model.experts = 0; },
      [](Settings& s) { s.precision.compute = ComputePrecision::bf16; },
      [](Settings& s) {
        s.precision.compute = ComputePrecision::bf16;
        s.activations.checkpoint = CheckpointMode::full;
        s.train.accumulation = 3;
      },
      [](Settings& s) { s.activations.storage = ActivationStorage::int8; },
      [](Settings& s) { s.attention.kernel = AttentionKernel::sliding_window, s.attention.window = 20; },
      [](Settings& s) { s.model.qk_norm = QkNorm::head, s.train.tokens_per_device = 1000; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Settings s = packed_settings();
    s.model.d_model = 64;
    s.train.tokens_per_device = 300;
    s.eval.batches = 0;
    changes[i](s);
    validate(s);
    const auto predicted = static_cast<double>(dry_run(s).peak),
               measured = static_cast<double>(test::measured_run(s).device);
    EXPECT_NEAR(predicted / measured, 1, 0.01) << i << ": " << predicted << " of " << measured;
  }
}

// On CUDA the scratch for keys depends on the longest document, not on the row.
TEST(PackedDryRun, CountsTheLongestDocumentOnAGpu) {
  constexpr int64_t kHeads = 16;
  const auto scratch = [](int64_t longest) {
    Settings s = packed_settings();
    s.run.device = DeviceChoice::cuda;
    s.train.tokens_per_device = 4096;
    s.train.sequence = longest;
    s.model.experts = 0;
    s.model.layers = 1;
    s.model.d_model = 64;
    s.model.heads = kHeads;
    s.eval.batches = 0;
    return dry_run(s).phase_peak[static_cast<size_t>(Phase::forward)];
  };
  EXPECT_EQ(scratch(2048) - scratch(1024), 4 * 128 * 1024 * kHeads);
}

// What is copied to a GPU: tokens, targets, and the starts of documents.
TEST(PackedDryRun, CountsTheBatchOnAGpu) {
  install_allocators();
  const Settings s = packed_settings();
  const auto bytes = [&](c10::Device device) {
    Batch batch = test::random_batch(s, 0, 0, 1);
    if (device.is_meta()) {
      const HomeScope outside(Home::host);
      for (at::Tensor* x : {&batch.tokens, &batch.targets, &batch.documents}) *x = x->to(device);
    }
    const int64_t before = device_memory(device).allocated;
    const Batch there = batch_on(device, batch);
    EXPECT_EQ(there.share, batch.share);
    return device_memory(device).allocated - before;
  };
  EXPECT_EQ(bytes(at::kMeta), 0);
  EXPECT_EQ(bytes(at::kCPU), 0);
  const SimulatedDevice gpu(c10::kCUDA);
  EXPECT_EQ(bytes(at::kMeta), s.train.row() * (8 + 8 + 4));
}

}  // namespace
}  // namespace moelab
