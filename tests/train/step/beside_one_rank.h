#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "tests/train/step/compared_runs.h"
#include "tests/train/step/data_ranks.h"
#include "tests/train/step/random_run.h"
#include "train/parallel/layout.h"

// Runs of ranks as threads, to be compared with one rank that takes all micro-batches.
namespace moelab::test {

inline constexpr int64_t kSteps = 3;

// Settings of a run that takes milliseconds.
inline const std::vector<std::string> kTinyRun = {
    "model.vocab=61",      "model.d_model=32",  "model.layers=2", "model.heads=4",  "model.d_expert=48",
    "train.micro_batch=2", "train.sequence=24", "train.steps=8",  "optim.warmup=1", "optim.clip=0.5"};

// What must be the same.
struct Outcome {
  std::vector<double> numbers;  // of each step
  double held_out = 0;
  std::vector<TensorEntry> weights, state;
};

inline Outcome outcome_of(const Settings& s, const BatchSource& batches, DataRanks ranks) {
  Trainer trainer(s, at::kCPU, batches, ranks);
  Outcome outcome;
  for (int64_t step = 0; step < kSteps; ++step) {
    const StepReport report = trainer.step(step);
    outcome.numbers.insert(outcome.numbers.end(),
                           {report.loss, report.gradient_norm, report.balance_loss, report.dropped_fraction,
                            report.load_entropy, static_cast<double>(report.skipped)});
  }
  outcome.held_out = trainer.evaluate([&](int64_t b) { return batches(100 + b, 0, 2); }, 3);
  const auto copies = [](std::vector<TensorEntry> entries) {
    for (TensorEntry& entry : entries) entry.tensor = entry.tensor.clone();
    return entries;
  };
  outcome.weights = copies(trainer.weights());
  outcome.state = copies(trainer.optimizer_state());
  return outcome;
}

inline void expect_same(const Outcome& got, const Outcome& want, const std::string& where) {
  EXPECT_EQ(got.numbers, want.numbers) << where;
  EXPECT_EQ(got.held_out, want.held_out) << where;
  expect_equal(got.weights, want.weights, where);
  expect_equal(got.state, want.state, where);
}

// Where it does, an evaluation on ranks that share the experts is close alone: it is dropless, and the sums
// of LibTorch's fp32 products depend on where an expert's rows lie.
inline bool sums_in_fp32(const Settings& s) { return s.precision.compute == ComputePrecision::fp32; }

inline RankLayout layout(const Settings& s) {
  const ParallelSettings& p = s.parallel;
  return {.data = p.data, .tensor = p.tensor, .pipeline = p.pipeline, .expert = p.expert};
}

// The run of one rank that takes all micro-batches of a run of ranks, `s`.
inline Settings alone(const Settings& s) {
  Settings one = s;
  one.parallel = {};
  one.train.accumulation *= std::max<int64_t>(1, s.parallel.data);
  one.optim.in_backward = s.optim.in_backward && one.train.accumulation == 1;
  return one;
}

// Expects the ranks of `s` to have the numbers of `want`, its weights and its state, each rank its part.
inline void expect_outcome(const Settings& s, const BatchSource& batches, const Outcome& want,
                           const std::string& where) {
  for (const double number : want.numbers) ASSERT_TRUE(std::isfinite(number)) << where;
  std::vector<Outcome> got(layout(s).ranks());
  try {
    run_ranks(layout(s),
              [&](DataRanks ranks) { got[ranks.control->rank()] = outcome_of(s, batches, ranks); });
  } catch (const std::exception& error) {
    FAIL() << where << ": " << error.what();
  }
  std::set<std::string> left;
  for (const auto* entries : {&want.weights, &want.state})
    for (const TensorEntry& entry : *entries) left.insert(entry.name);
  const bool same_evaluation = s.parallel.expert == 1 || !sums_in_fp32(s);
  for (size_t r = 0; r < got.size(); ++r) {
    const std::string rank = where + ", rank " + std::to_string(r);
    EXPECT_EQ(got[r].numbers, want.numbers) << rank;
    EXPECT_NEAR(got[r].held_out, want.held_out, same_evaluation ? 0 : 5e-6 * want.held_out) << rank;
    expect_among(got[r].weights, want.weights, left, rank);
    expect_among(got[r].state, want.state, left, rank);
  }
  EXPECT_TRUE(left.empty()) << where << ": no rank has " << *left.begin();
}

// `s` has the accumulation of one of the ranks.
inline void expect_bits_of_one_rank(const Settings& s, const std::string& where) {
  const BatchSource batches = random_batches(alone(s));
  expect_outcome(s, batches, outcome_of(alone(s), batches, {}), where);
}

}  // namespace moelab::test
