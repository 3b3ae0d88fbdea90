#include <gtest/gtest.h>

#include <cmath>

#include "kernels/update/adamw.h"
#include "kernels/update/momentum_step.h"
#include "tests/kernels/cases/update_rules.h"
#include "tests/kernels/reference.h"

// The forms of weights that rules support: with an fp16 copy, and bf16 alone. test_update_rules.cpp compares
// the rules on fp32 weights with float64.
namespace moelab {
namespace {

using at::Tensor;
using test::bitwise_equal;
using test::UpdateRule;
using State = UpdateRule::State;

OptimizerStep numbers(int64_t step, double lr = 1e-3) {
  return {.lr = lr,
          .beta1 = 0.9,
          .beta2 = 0.98,
          .weight_decay = 0.1,
          .step = step,
          .gradient_scale = 1.0 / 1024,
          .stream = 42};
}

Tensor gradient(int64_t rows, int64_t columns, int64_t step) {
  at::manual_seed(100 + step);
  return at::randn({rows, columns}) * 10;
}

constexpr int64_t kRows = 21, kColumns = 53;

Tensor weights() {
  at::manual_seed(5);
  return at::randn({kRows, kColumns}) * 0.3;
}

TEST(SteppedWeights, Fp16GradientsAndCopiesOfEveryRule) {
  for (const UpdateRule& rule : test::update_rules()) {
    const Tensor half = weights(), wide = half.clone(), copy = half.to(at::kHalf);
    const State half_state = rule.make_state(kRows, kColumns), wide_state = rule.make_state(kRows, kColumns);
    for (int64_t step = 1; step <= 3; ++step) {
      const Tensor g = gradient(kRows, kColumns, step).to(at::kHalf);
      rule.step(half, g, half_state, copy, numbers(step));
      rule.step(wide, g.to(at::kFloat), wide_state, std::nullopt, numbers(step));
      EXPECT_TRUE(bitwise_equal(half, wide)) << rule.name;
      EXPECT_TRUE(bitwise_equal(copy, half.to(at::kHalf))) << rule.name;
    }
  }
}

// The distance between the bf16 numbers around x.
Tensor bf16_step(const Tensor& x) {
  const auto [mantissa, exponent] = at::frexp(x.to(at::kDouble));
  return at::ldexp(at::ones_like(mantissa), exponent - 8);
}

TEST(SteppedWeights, Bf16OnesAreTheFp32UpdateRoundedToOneOfItsNeighbours) {
  for (const UpdateRule& rule : test::update_rules()) {
    const Tensor bf16 = weights().to(at::kBFloat16);
    const State state = rule.make_state(kRows, kColumns), wide_state = rule.make_state(kRows, kColumns);
    double up = 0, inexact = 0;
    for (int64_t step = 1; step <= 4; ++step) {
      const Tensor g = gradient(kRows, kColumns, step).to(at::kBFloat16), wide = bf16.to(at::kFloat);
      rule.step(wide, g, wide_state, std::nullopt, numbers(step));
      rule.step(bf16, g, state, std::nullopt, numbers(step));
      const Tensor off = bf16.to(at::kDouble) - wide.to(at::kDouble);
      EXPECT_TRUE(off.abs().lt(bf16_step(wide)).all().item<bool>()) << rule.name;
      up += off.gt(0).sum().item<double>();
      inexact += off.ne(0).sum().item<double>();
      for (size_t i = 0; i < state.size(); ++i)
        EXPECT_TRUE(bitwise_equal(state[i], wide_state[i])) << rule.name;
    }
    // up and down are equally likely: four deviations of a fair coin
    EXPECT_NEAR(up / inexact, 0.5, 4 * 0.5 / std::sqrt(inexact)) << rule.name;
  }
}

TEST(SteppedWeights, RoundingIsUnbiased) {
  constexpr int64_t n = 200000;
  for (const double lr : {1e-4, 1e-3, 2.7e-3}) {
    const Tensor bf16 = at::ones({n}, at::kBFloat16), exact = at::ones({1});
    const Tensor g = at::full({n}, 8.0f);
    adamw_(exact, g.narrow(0, 0, 1), at::zeros({1}), at::zeros({1}), std::nullopt, numbers(1, lr));
    adamw_(bf16, g, at::zeros({n}), at::zeros({n}), std::nullopt, numbers(1, lr));
    const double want = exact.item<double>(), step = 0x1p-8;  // of bf16 just below 1
    // one draw deviates by half a step at most; this is four deviations of the mean
    const double bound = 4 * step / 2 / std::sqrt(static_cast<double>(n));
    EXPECT_NEAR(bf16.to(at::kDouble).mean().item<double>(), want, bound) << lr;
    EXPECT_GT(std::abs(exact.to(at::kBFloat16).item<double>() - want), bound) << lr;  // nearest is outside
  }
}

// A hundred steps of a fiftieth of a weight's last place: rounded to nearest, none would change it.
TEST(SteppedWeights, SmallStepsAddUp) {
  constexpr int64_t n = 20000, kSteps = 100;
  const Tensor bf16 = at::full({n}, 1.25, at::kBFloat16), g = at::full({n}, 1024.0f);
  const double lr = 0x1p-7 / 50;
  OptimizerStep step = numbers(1, lr);
  step.beta1 = 0;
  step.weight_decay = 0;
  for (step.step = 1; step.step <= kSteps; ++step.step) {
    momentum_step_(MomentumRule::sgd, bf16, g, at::zeros({n}), std::nullopt, step);
  }
  // each step deviates by half a place at most
  const double bound = 4 * 0x1p-7 / 2 * std::sqrt(static_cast<double>(kSteps) / n);
  EXPECT_LT(bound, 0.1 * kSteps * lr);
  EXPECT_NEAR(bf16.to(at::kDouble).mean().item<double>(), 1.25 - kSteps * lr, bound);
}

TEST(SteppedWeights, WeightsAndMomentsDrawApart) {
  constexpr int64_t n = 100000;
  const Tensor w = at::ones({n}, at::kBFloat16), m = at::zeros({n}, at::kBFloat16), v = at::zeros_like(m);
  OptimizerStep step = numbers(1, 2e-3);
  step.weight_decay = 0;
  adamw_(w, at::full({n}, 10.23f), m, v, std::nullopt, step);
  for (const Tensor& moment : {m, v}) {
    const auto centred = [](const Tensor& x) {
      const Tensor wide = x.to(at::kDouble);
      return (wide - wide.mean()) / wide.std();
    };
    // four deviations of the correlation of independent draws
    EXPECT_LT(std::abs((centred(w) * centred(moment)).mean().item<double>()), 4 / std::sqrt(double(n)));
  }
}

TEST(SteppedWeights, ThreadsChangeNoBit) {
  for (const UpdateRule& rule : test::update_rules()) {
    std::vector<Tensor> results;
    for (const int threads : {1, 2}) {
      const test::ThreadScope scope(threads);
      at::manual_seed(1);
      const Tensor w = at::randn({500, 200}).to(at::kBFloat16);
      const State state = rule.make_state(500, 200);
      for (int64_t step = 1; step <= 2; ++step) {
        rule.step(w, gradient(500, 200, step), state, std::nullopt, numbers(step));
      }
      results.push_back(w);
    }
    EXPECT_TRUE(bitwise_equal(results[0], results[1])) << rule.name;
  }
}

TEST(SteppedWeights, Bf16OnesTakeNoCopy) {
  for (const UpdateRule& rule : test::update_rules()) {
    const Tensor w = weights().to(at::kBFloat16), g = gradient(kRows, kColumns, 1);
    const State state = rule.make_state(kRows, kColumns);
    EXPECT_THROW(rule.step(w, g, state, w.clone(), numbers(1)), c10::Error) << rule.name;
    EXPECT_THROW(rule.step(weights().to(at::kHalf), g, state, std::nullopt, numbers(1)), c10::Error)
        << rule.name;
  }
}

}  // namespace
}  // namespace moelab
