#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/train/step/compared_runs.h"
#include "tests/train/step/data_ranks.h"
#include "tests/train/step/random_run.h"

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

// `same_evaluation`: else it is close. It is dropless, and the sums of LibTorch's fp32 products depend on
// where an expert's rows lie.
inline void expect_same(const Outcome& got, const Outcome& want, const std::string& where,
                        bool same_evaluation = true) {
  EXPECT_EQ(got.numbers, want.numbers) << where;
  EXPECT_NEAR(got.held_out, want.held_out, same_evaluation ? 0 : 5e-6 * want.held_out) << where;
  expect_equal(got.weights, want.weights, where);
  expect_equal(got.state, want.state, where);
}

inline bool sums_in_fp32(const Settings& s) { return s.precision.compute == ComputePrecision::fp32; }

// `s` has the accumulation of one of the ranks.
inline void expect_bits_of_one_rank(const Settings& s, int64_t ranks, const std::string& where) {
  Settings one = s;
  one.parallel = {};
  one.train.accumulation *= ranks;
  one.optim.in_backward = false;  // it has no accumulation
  const BatchSource batches = random_batches(one);
  const Outcome want = outcome_of(one, batches, {});
  for (const double number : want.numbers) ASSERT_TRUE(std::isfinite(number)) << where;
  std::vector<Outcome> got(ranks);
  try {
    run_data_ranks(
        ranks, [&](DataRanks data) { got[data.rank()] = outcome_of(s, batches, data); }, s.parallel.expert);
  } catch (const std::exception& error) {
    FAIL() << where << ": " << error.what();
  }
  const bool same_evaluation = s.parallel.expert == 1 || !sums_in_fp32(s);
  for (int64_t r = 0; r < ranks; ++r)
    expect_same(got[r], want, where + " rank " + std::to_string(r), same_evaluation);
}

}  // namespace moelab::test
