#include <gtest/gtest.h>

#include "kernels/memory/ledger.h"
#include "tests/kernels/reference.h"
#include "tests/train/step/random_run.h"
#include "train/predict/dry_run.h"
#include "train/settings/convert.h"
#include "train/settings/load.h"

// Recomputed pieces in whole training steps, combined with accumulation, loss scales and offloaded weights.
namespace moelab {
namespace {

const std::vector<Piece> kCheap = {Piece::norms, Piece::expert_hidden};
const std::vector<Piece> kHalves = {Piece::attention, Piece::moe};

std::vector<TensorEntry> weights_after_steps(const Settings& s) {
  Trainer trainer(s, at::kCPU, test::random_batches(s));
  for (int64_t step = 0; step < 3; ++step) EXPECT_FALSE(trainer.step(step).skipped);
  return trainer.weights();
}

TEST(Pieces, TrainToTheSameBits) {
  install_allocators();
  const Settings small = test::small_settings();
  std::vector<Settings> runs(5, small);
  runs[0].train.accumulation = 2;
  runs[0].precision.compute = ComputePrecision::bf16;
  runs[1].optim.in_backward = true;
  runs[2].precision.compute = ComputePrecision::fp16;
  runs[2].activations.checkpoint = CheckpointMode::every;
  runs[2].activations.every = 2;
  runs[3].placement.parameters = Home::host;
  runs[4].precision.compute = ComputePrecision::bf16;
  runs[4].precision.store = WeightStore::int8;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto want = weights_after_steps(runs[i]);
    for (const auto& pieces : {kCheap, kHalves, {Piece::attention, Piece::norms}}) {
      Settings s = runs[i];
      s.activations.pieces = pieces;
      const auto got = weights_after_steps(s);
      for (size_t p = 0; p < want.size(); ++p) {
        EXPECT_TRUE(test::bitwise_equal(got[p].tensor, want[p].tensor))
            << "run " << i << ", " << want[p].name;
      }
    }
  }
}

TEST(Pieces, DryRunPredictsTheMeasuredPeak) {
  install_allocators();
  Settings s = load_settings({.config = "moe-pico", .overrides = {"train.sequence=128", "eval.batches=0"}});
  const std::vector<std::vector<Piece>> sets = {
      kCheap, kHalves, {Piece::attention, Piece::norms, Piece::expert_hidden}};
  for (const auto compute : {ComputePrecision::fp32, ComputePrecision::bf16, ComputePrecision::fp8}) {
    for (const auto dispatch : {Dispatch::capacity, Dispatch::dropless}) {
      for (const auto storage : {ActivationStorage::keep, ActivationStorage::int8}) {
        for (const auto& pieces : sets) {
          s.precision.compute = compute;
          s.model.dispatch = dispatch;
          s.activations.storage = storage;
          s.activations.pieces = pieces;
          const auto predicted = static_cast<double>(dry_run(s).peak);
          const auto measured = static_cast<double>(test::measured_run(s).device);
          EXPECT_NEAR(predicted / measured, 1, 0.01)
              << value_text(compute) << " " << value_text(dispatch) << " " << value_text(storage) << " "
              << value_text(pieces) << ": " << predicted << " for " << measured;
        }
      }
    }
  }
}

TEST(Pieces, EachLowersThePeak) {
  Settings s = test::small_settings();
  s.train.sequence = 192;
  const int64_t keep = dry_run(s).peak;
  for (const Piece piece : {Piece::norms, Piece::attention, Piece::expert_hidden, Piece::moe}) {
    s.activations.pieces = {piece};
    EXPECT_LT(dry_run(s).peak, keep) << static_cast<int>(piece);
  }
}

}  // namespace
}  // namespace moelab
