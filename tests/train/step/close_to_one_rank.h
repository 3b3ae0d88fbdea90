#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/train/step/beside_one_rank.h"

// Runs of ranks whose sums are in another order than one rank's, so that they can only be close to it.
namespace moelab::test {

struct Trained {
  std::vector<StepReport> steps;
  double held_out = 0;
  std::vector<TensorEntry> weights;
};

inline Trained train(const Settings& s, DataRanks ranks) {
  constexpr int64_t kStepsHere = 5;
  const BatchSource batches = random_batches(alone(s));
  Trainer trainer(s, at::kCPU, batches, ranks);
  Trained trained;
  for (int64_t step = 0; step < kStepsHere; ++step) trained.steps.push_back(trainer.step(step));
  trained.held_out = trainer.evaluate([&](int64_t b) { return batches(100 + b, 0, 2); }, 3);
  trained.weights = trainer.weights();
  for (TensorEntry& entry : trained.weights) entry.tensor = entry.tensor.clone();
  return trained;
}

inline std::vector<Trained> train_on(const Settings& s) {
  std::vector<Trained> trained(layout(s).ranks());
  run_ranks(layout(s), [&](DataRanks ranks) { trained[ranks.control->rank()] = train(s, ranks); });
  return trained;
}

inline at::Tensor weight(const std::string& name, const Trained& run) {
  for (const TensorEntry& entry : run.weights)
    if (entry.name == name) return entry.tensor;
  ADD_FAILURE() << "no weight " << name;
  return {};
}

// Relative Frobenius norm of the difference, of all weights together. Each element counts once.
inline double difference(const std::vector<Trained>& ranks, const Trained& whole) {
  double apart = 0, size = 0, all = 0;
  for (const Trained& rank : ranks) {
    for (const TensorEntry& entry : rank.weights) {
      if (entry.elsewhere) continue;
      const at::Tensor want = own_part(weight(entry.name, whole), entry).to(at::kDouble);
      apart += entry.tensor.to(at::kDouble).sub(want).square().sum().item<double>();
      size += want.square().sum().item<double>();
    }
  }
  for (const TensorEntry& entry : whole.weights)
    all += entry.tensor.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(size / all, 1, 1e-5) << "the ranks do not have every weight once";
  return std::sqrt(apart / all);
}

inline void expect_close_reports(const Trained& got, const Trained& want, double bound) {
  for (size_t i = 0; i < want.steps.size(); ++i) {
    const StepReport &a = got.steps[i], &b = want.steps[i];
    EXPECT_NEAR(a.loss, b.loss, bound * b.loss);
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 10 * bound * b.gradient_norm);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.skipped, b.skipped);
  }
  EXPECT_NEAR(got.held_out, want.held_out, bound * want.held_out);
}

// At some widths the CPU's products split a sum as two ranks do, so one width proves little.
inline std::vector<std::string> widths(int64_t width) {
  return {"model.d_model=" + std::to_string(width), "model.d_expert=" + std::to_string(width + 8)};
}

}  // namespace moelab::test
