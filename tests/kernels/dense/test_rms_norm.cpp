#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/dense/rms_norm.h"
#include "kernels/memory/ledger.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/rms_norm.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

using at::Tensor;
using test::close_to;
using test::tolerance;

constexpr double kEps = 1e-5;

struct Result {
  Tensor y, dx, dweight;
};

// Textbook formulation in x's own dtype; in float64 it is the reference.
Tensor plain(const Tensor& x, const Tensor& weight, double eps = kEps) {
  return x * (x.square().mean(-1, true) + eps).rsqrt() * weight;
}

template <class F>
Result run(const F& f, const Tensor& x0, const Tensor& weight0, const Tensor& grad) {
  const Tensor x = x0.detach().clone().requires_grad_(), weight = weight0.detach().clone().requires_grad_();
  const Tensor y = f(x, weight);
  y.backward(grad.to(y.scalar_type()));
  return {y.detach(), x.grad(), weight.grad()};
}

Result ours(const Tensor& x, const Tensor& weight, const Tensor& grad) {
  return run([](const Tensor& a, const Tensor& w) { return rms_norm(a, w, kEps); }, x, weight, grad);
}

Result reference(const Tensor& x, const Tensor& weight, const Tensor& grad) {
  return run([](const Tensor& a, const Tensor& w) { return plain(a, w); }, x.to(at::kDouble),
             weight.to(at::kDouble), grad);
}

class RmsNorm : public ::testing::TestWithParam<test::RmsNormCase> {
 protected:
  void SetUp() override {
    MOELAB_NEEDS(GetParam().device);
    const auto in = test::make_input(GetParam());
    x = in.x;
    weight = in.weight;
    grad = in.grad;
  }
  Tensor x, weight, grad;
};

TEST_P(RmsNorm, MatchesFloat64) {
  const Result got = ours(x, weight, grad), want = reference(x, weight, grad);
  const auto dtype = GetParam().dtype;
  const int64_t D = x.size(-1);
  EXPECT_EQ(got.y.scalar_type(), dtype);
  EXPECT_EQ(got.dweight.scalar_type(), at::kFloat);
  EXPECT_TRUE(close_to(got.y, want.y, tolerance(dtype, D, 1)));
  EXPECT_TRUE(close_to(got.dx, want.dx, tolerance(dtype, D, 1)));
  EXPECT_TRUE(
      close_to(got.dweight, want.dweight, tolerance(at::kFloat, x.numel() / std::max<int64_t>(D, 1) + D, 1)));
}

TEST_P(RmsNorm, SameBitsOnAnyNumberOfThreads) {
  const auto on = [&](int threads) {
    const test::ThreadScope scope(threads);
    return ours(x, weight, grad);
  };
  const Result one = on(1), two = on(2), three = on(3);
  for (const Result* other : {&two, &three}) {
    EXPECT_TRUE(test::bitwise_equal(one.y, other->y));
    EXPECT_TRUE(test::bitwise_equal(one.dx, other->dx));
    EXPECT_TRUE(test::bitwise_equal(one.dweight, other->dweight));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RmsNorm,
                         ::testing::ValuesIn(test::on_every_device(test::cases_for(test::Use::test,
                                                                                   test::rms_norm_cases()))),
                         [](const auto& info) { return test::case_name(info); });

TEST(RmsNormBf16, NotWorseThanTheFormulaInBf16) {
  at::manual_seed(3);
  const Tensor x = at::randn({256, 384}).to(at::kBFloat16), grad = at::randn({256, 384}).to(at::kBFloat16);
  const Tensor weight = 1 + 0.1 * at::randn({384});
  const Result want = reference(x, weight, grad), got = ours(x, weight, grad);
  const Result other =
      run([](const Tensor& a, const Tensor& w) { return plain(a, w); }, x, weight.to(at::kBFloat16), grad);
  EXPECT_LE(test::relative_error(got.y, want.y), 3e-3);
  EXPECT_LE(test::relative_error(got.dx, want.dx), 3e-3);
  EXPECT_LE(test::relative_error(got.y, want.y), 1.1 * test::relative_error(other.y, want.y));
  EXPECT_LE(test::relative_error(got.dx, want.dx), 1.1 * test::relative_error(other.dx, want.dx));
  EXPECT_LE(test::relative_error(got.dweight, want.dweight),
            test::relative_error(other.dweight, want.dweight));
}

// The query heads of a packed projection are read in place, without a copy, and give the same numbers.
TEST(RmsNormStrided, HeadsOfAPackedTensor) {
  at::manual_seed(4);
  const Tensor packed = at::randn({2, 9, 7, 24}), weight = at::rand({24});
  const Tensor heads = packed.narrow(2, 1, 4), copy = heads.contiguous();
  EXPECT_TRUE(test::bitwise_equal(rms_norm(heads, weight, kEps), rms_norm(copy, weight, kEps)));
  const Tensor swapped = packed.permute({2, 3, 0, 1});  // the last axis does not have stride 1
  const Tensor ones = at::ones({9});
  EXPECT_TRUE(test::bitwise_equal(rms_norm(swapped, ones, kEps), rms_norm(swapped.contiguous(), ones, kEps)));

  const Tensor leaf = packed.clone().requires_grad_(), twin = packed.clone().requires_grad_();
  const Tensor grad = at::randn({2, 9, 4, 24});
  rms_norm(leaf.narrow(2, 1, 4), weight, kEps).backward(grad);
  rms_norm(twin.narrow(2, 1, 4).contiguous(), weight, kEps).backward(grad);
  EXPECT_TRUE(test::bitwise_equal(leaf.grad(), twin.grad()));
}

TEST(RmsNormGradient, FiniteDifferences) {
  at::manual_seed(5);
  const Tensor x = at::randn({6, 33}), weight = 1 + 0.3 * at::randn({33});
  EXPECT_TRUE(test::finite_difference_check([&](const Tensor& a) { return rms_norm(a, weight, kEps); }, x));
  EXPECT_TRUE(test::finite_difference_check([&](const Tensor& w) { return rms_norm(x, w, kEps); }, weight));
}

// A comparison that cannot fail proves nothing.
TEST(RmsNormMutation, BrokenVariantsFail) {
  at::manual_seed(6);
  const Tensor x = 0.05 * at::randn({8, 40}), weight = 1 + 0.3 * at::randn({40}), grad = at::randn({8, 40});
  const Result got = ours(x, weight, grad), want = reference(x, weight, grad);
  const auto close = tolerance(at::kFloat, 40);
  ASSERT_TRUE(close_to(got.y, want.y, close));
  EXPECT_FALSE(close_to(got.y, plain(x.to(at::kDouble), weight.to(at::kDouble), 2 * kEps), close));
  EXPECT_FALSE(close_to(got.dx, -want.dx, close));
  Tensor one_wrong = got.dx.clone();
  one_wrong[3][7].add_(1e-3 * want.dx.abs().max().item<double>());
  EXPECT_FALSE(close_to(one_wrong, want.dx, close));
  one_wrong[3][7].fill_(std::nan(""));
  EXPECT_FALSE(close_to(one_wrong, want.dx, close));
  EXPECT_FALSE(close_to(at::zeros_like(got.y), want.y, close));
}

TEST(RmsNormChecks, RefusesWrongWeights) {
  const Tensor x = at::zeros({2, 8});
  EXPECT_THROW(rms_norm(x, at::ones({7}), kEps), c10::Error);
  EXPECT_THROW(rms_norm(x, at::ones({8}).to(at::kBFloat16), kEps), c10::Error);
  EXPECT_THROW(rms_norm(x.to(at::kDouble), at::ones({8}), kEps), c10::Error);
}

int64_t peak_of_a_step(at::Device device) {
  install_allocators();
  Ledger& ledger = device.is_meta() ? meta_ledger() : cpu_ledger();
  const auto options = at::TensorOptions().device(device);
  const Tensor x = at::zeros({3, 100, 48}, options.dtype(at::kBFloat16)).requires_grad_();
  const Tensor weight = at::ones({48}, options).requires_grad_();
  const Tensor grad = at::ones({3, 100, 48}, options.dtype(at::kBFloat16));
  ledger.reset_peaks();
  const int64_t before = ledger.allocated();
  rms_norm(x, weight, kEps).backward(grad);
  return ledger.peak() - before;
}

TEST(RmsNormMemory, MetaPredictsTheCpuToTheByte) {
  const int64_t cpu = peak_of_a_step(at::kCPU);
  // y and rstd, dx and dweight, 16 partial sums of 19 or 20 rows: none of it is hidden from the ledger.
  EXPECT_GE(cpu, 3 * 100 * 48 * 2 * 2 + 300 * 4 + 48 * 4);
  EXPECT_EQ(cpu, peak_of_a_step(at::kMeta));
}

}  // namespace
}  // namespace moelab
