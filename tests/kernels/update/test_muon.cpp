#include "kernels/update/muon.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/memory/ledger.h"
#include "tests/kernels/reference.h"

// Muon compared with its authors' algorithm in float64.
namespace moelab {
namespace {

using at::Tensor;

// How the algorithm is changed for the variants that must fail.
enum class Broken {
  nothing,
  no_nesterov,
  other_momentum,
  four_rounds,
  no_scale,
  experts_as_one,
  adamws_rate
};

// muon_update and the step around it (the authors' muon.py), with their learning rate of 0.02 for AdamW's
// 3e-4. Weight decay is multiplied by AdamW's rate.
struct Authors {
  Tensor weights, momentum;  // fp64
  Broken broken = Broken::nothing;

  Tensor orthogonal(const Tensor& update) const {
    const bool tall = update.size(-2) > update.size(-1);
    Tensor x = tall ? update.mT() : update;
    x = x / (at::linalg_matrix_norm(x, "fro", {-2, -1}, true) + 1e-7);
    for (int round = 0; round < (broken == Broken::four_rounds ? 4 : 5); ++round) {
      const Tensor a = at::matmul(x, x.mT());
      const Tensor b = -4.7750 * a + 2.0315 * at::matmul(a, a);
      x = 3.4445 * x + at::matmul(b, x);
    }
    return tall ? x.mT() : x;
  }

  void step(const Tensor& gradient, double lr, double weight_decay) {
    const double beta = broken == Broken::other_momentum ? 0.9 : 0.95;
    const Tensor g = gradient.to(at::kDouble);
    momentum = beta * momentum + (1 - beta) * g;
    Tensor update = broken == Broken::no_nesterov ? momentum : (1 - beta) * g + beta * momentum;
    if (broken == Broken::experts_as_one) update = update.reshape({-1, update.size(-1)});
    update = orthogonal(update).reshape(weights.sizes());
    const double ratio = static_cast<double>(weights.size(-2)) / static_cast<double>(weights.size(-1));
    if (broken != Broken::no_scale) update = update * std::sqrt(std::max(1.0, ratio));
    const double own = broken == Broken::adamws_rate ? lr : lr * 0.02 / 3e-4;
    weights = weights * (1 - lr * weight_decay) - own * update;
  }
};

const OptimizerStep kNumbers{.lr = 3e-4, .weight_decay = 0.1, .gradient_scale = 0.5};

Tensor gradient_of(at::IntArrayRef shape, int step, at::ScalarType type) {
  at::manual_seed(7 + static_cast<uint64_t>(step));
  return (at::randn(shape) * (step == 2 ? 30 : 1)).to(type);
}

// Twenty roundings to bf16, four a round, each at most half an epsilon: 0.08 of the norm.
constexpr double kRelative = 20 * 0x1p-8;

// Four steps from the same weights. The weights' changes are compared, so that the initial weights hide
// nothing.
testing::AssertionResult follows(at::IntArrayRef shape, at::ScalarType type,
                                 Broken broken = Broken::nothing) {
  at::manual_seed(3);
  const Tensor first = at::randn(shape) * 0.1, weights = first.clone(), m = at::zeros(shape),
               copy = first.to(at::kBFloat16);
  Authors authors{first.to(at::kDouble), at::zeros(shape, at::kDouble), broken};
  for (int step = 0; step < 4; ++step) {
    const Tensor gradient = gradient_of(shape, step, type);
    muon_(weights, gradient, m, copy, kNumbers);
    authors.step(gradient.to(at::kDouble) * kNumbers.gradient_scale, kNumbers.lr, kNumbers.weight_decay);
  }
  if (const auto same = test::close_to(m, authors.momentum, 1e-6, 1e-5); !same) return same;
  if (!test::bitwise_equal(copy, weights.to(at::kBFloat16)))
    return testing::AssertionFailure() << "the copy is not the weights rounded";
  const Tensor start = first.to(at::kDouble);
  return test::close_to(weights.to(at::kDouble) - start, authors.weights - start, kRelative, 8 * kRelative);
}

const std::vector<std::vector<int64_t>> kShapes = {{24, 40},    {40, 24},    {32, 32},
                                                   {3, 48, 20}, {3, 16, 72}, {130, 1}};

TEST(Muon, FollowsItsAuthorsInFloat64) {
  for (const auto& shape : kShapes) {
    for (const auto type : {at::kFloat, at::kBFloat16})
      EXPECT_TRUE(follows(shape, type)) << at::IntArrayRef(shape) << " " << type;
  }
}

TEST(Muon, BrokenVariantsDoNot) {
  for (const auto broken : {Broken::no_nesterov, Broken::other_momentum, Broken::four_rounds,
                            Broken::no_scale, Broken::experts_as_one, Broken::adamws_rate})
    EXPECT_FALSE(follows({3, 48, 20}, at::kFloat, broken)) << static_cast<int>(broken);
}

// Whatever the momentum's scale, a step's singular values are near 1.
TEST(Muon, AStepIsNearlyOrthogonal) {
  for (const double size : {1e-5, 1.0, 1e5}) {
    at::manual_seed(1);
    const Tensor weights = at::zeros({2, 24, 64}), gradient = at::randn({2, 24, 64}) * size;
    muon_(weights, gradient, at::zeros({2, 24, 64}), {}, {.lr = 3e-4});
    const Tensor values = at::linalg_svdvals(weights.to(at::kDouble)) / 0.02;
    EXPECT_GT(values.min().item<double>(), 0.5) << size;
    EXPECT_LT(values.max().item<double>(), 1.5) << size;
  }
}

// An expert's bits do not depend on which other experts are stepped with it.
TEST(Muon, PartsAreBitwiseTheWhole) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {  // bf16: rounded stochastically
    at::manual_seed(2);
    const Tensor whole = (at::randn({5, 24, 40}) * 0.1).to(type), parts = whole.clone(),
                 gradient = at::randn({5, 24, 40}), m = at::zeros({5, 24, 40}), m_parts = m.clone();
    OptimizerStep numbers = kNumbers;
    numbers.stream = 9;
    muon_(whole, gradient, m, {}, numbers);
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 2}, {2, 3}}) {
      numbers.first_element = first * 24 * 40;
      muon_(parts.narrow(0, first, count), gradient.narrow(0, first, count), m_parts.narrow(0, first, count),
            {}, numbers);
    }
    EXPECT_TRUE(test::bitwise_equal(parts, whole)) << type;
    EXPECT_TRUE(test::bitwise_equal(m_parts, m)) << type;
  }
}

// Two groups, of two matrices and of one. In bf16 they are rounded stochastically, by their place in the
// stack.
TEST(Muon, GroupsAreBitwiseTheirMatrices) {
  const std::vector<int64_t> shape = {3, 2, int64_t{3} << 20};
  at::manual_seed(4);
  const Tensor whole = (at::randn(shape) * 0.1).to(at::kBFloat16), each = whole.clone(),
               gradient = at::randn(shape).to(at::kBFloat16), m = at::zeros(shape), m_each = m.clone();
  OptimizerStep numbers = kNumbers;
  numbers.stream = 9;
  muon_(whole, gradient, m, {}, numbers);
  for (int64_t i = 0; i < shape[0]; ++i) {
    numbers.first_element = i * shape[1] * shape[2];
    muon_(each[i], gradient[i], m_each[i], {}, numbers);
  }
  EXPECT_TRUE(test::bitwise_equal(whole, each));
  EXPECT_TRUE(test::bitwise_equal(m, m_each));
}

TEST(Muon, ADryRunTakesTheSameScratch) {
  install_allocators();
  const Tensor first = at::zeros({32, 32});
  muon_(first, at::ones({32, 32}), at::zeros({32, 32}), {}, kNumbers);  // makes what the library makes once
  for (const auto& shape : kShapes) {
    std::vector<int64_t> scratch;
    for (const auto device : {at::kCPU, at::kMeta}) {
      Ledger& ledger = device == at::kCPU ? cpu_ledger() : meta_ledger();
      const auto options = at::TensorOptions(device);
      const Tensor weights = at::zeros(shape, options), gradient = at::ones(shape, options),
                   m = at::zeros(shape, options);
      const int64_t before = ledger.allocated();
      ledger.reset_peaks();
      muon_(weights, gradient, m, {}, kNumbers);
      scratch.push_back(ledger.tensor_peak() - before);
      EXPECT_EQ(ledger.allocated(), before);
    }
    EXPECT_NEAR(scratch[0], scratch[1], 16) << at::IntArrayRef(shape);  // ATen's temporaries of scalars
    EXPECT_GT(scratch[1], 0);
  }
}

}  // namespace
}  // namespace moelab
