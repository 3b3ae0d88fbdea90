#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/attention/rope.h"
#include "kernels/memory/ledger.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/rope.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

using at::Tensor;
using test::close_to;
using test::tolerance;

constexpr double kTheta = 10000;

// Hugging Face's formulation, in float64: x * cos + rotate_half(x) * sin. `sign` -1 rotates the other way.
Tensor plain(const Tensor& qkv, int64_t rotated_heads, double theta = kTheta, int64_t first = 0,
             double sign = 1) {
  const Tensor x = qkv.to(at::kDouble);
  const int64_t S = x.size(1), hd = x.size(3);
  const auto f64 = at::TensorOptions(qkv.device()).dtype(at::kDouble);
  const Tensor frequency = at::pow(theta, -at::arange(0, hd, 2, f64) / static_cast<double>(hd));
  const Tensor angle = at::outer(at::arange(first, first + S, f64), frequency);
  const Tensor both = at::cat({angle, angle}, -1).view({1, S, 1, hd});
  const auto parts = x.split_with_sizes({rotated_heads, x.size(2) - rotated_heads}, 2);
  const auto halves = parts[0].chunk(2, -1);
  const Tensor rotated_half = at::cat({-halves[1], halves[0]}, -1);
  return at::cat({parts[0] * both.cos() + sign * rotated_half * both.sin(), parts[1]}, 2);
}

Tensor ours(const Tensor& qkv, int64_t rotated_heads, double theta = kTheta, int64_t first = 0) {
  return rope_(qkv.clone(), rotated_heads, rope_table(qkv.size(1), qkv.size(3), theta, qkv.device(), first));
}

class Rope : public ::testing::TestWithParam<test::RopeCase> {
 protected:
  void SetUp() override {
    MOELAB_NEEDS(GetParam().device);
    const auto in = test::make_input(GetParam());
    qkv = in.qkv;
    grad = in.grad;
  }
  Tensor qkv, grad;
};

TEST_P(Rope, MatchesFloat64) {
  const auto c = GetParam();
  const Tensor x = qkv.clone().requires_grad_();
  const Tensor y = ours(x, c.rotated);
  y.backward(grad);
  const Tensor x64 = qkv.to(at::kDouble).requires_grad_();
  const Tensor y64 = plain(x64, c.rotated);
  y64.backward(grad.to(at::kDouble));
  EXPECT_EQ(y.scalar_type(), c.dtype);
  EXPECT_TRUE(close_to(y, y64, tolerance(c.dtype, 2)));
  EXPECT_TRUE(close_to(x.grad(), x64.grad(), tolerance(c.dtype, 2)));
  if (c.dtype == at::kBFloat16) {
    EXPECT_LE(test::relative_error(y, y64), 3e-3);
  }
}

TEST_P(Rope, SameBitsOnAnyNumberOfThreads) {
  const auto on = [&](int threads) {
    const test::ThreadScope scope(threads);
    const Tensor x = qkv.clone().requires_grad_();
    ours(x, GetParam().rotated).backward(grad);
    return std::pair{ours(qkv, GetParam().rotated), x.grad()};
  };
  const auto one = on(1), two = on(2);
  EXPECT_TRUE(test::bitwise_equal(one.first, two.first));
  EXPECT_TRUE(test::bitwise_equal(one.second, two.second));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Rope,
                         ::testing::ValuesIn(test::on_every_device(test::cases_for(test::Use::test,
                                                                                   test::rope_cases()))),
                         [](const auto& info) { return test::case_name(info); });

TEST(RopeTable, PositionsMayStartAnywhere) {
  at::manual_seed(12);
  const Tensor qkv = at::randn({2, 7, 3, 16});
  EXPECT_TRUE(close_to(ours(qkv, 2, 500000, 4091), plain(qkv, 2, 500000, 4091), tolerance(at::kFloat, 2)));
  // The last position alone, as in generation, has the same bits as in the whole sequence.
  const Tensor whole = ours(qkv, 2), last = ours(qkv.narrow(1, 6, 1).contiguous(), 2, kTheta, 6);
  EXPECT_TRUE(test::bitwise_equal(whole.narrow(1, 6, 1), last));
}

TEST(RopeTable, AnglesAreComputedInDouble) {
  const Tensor table = rope_table(1, 4, kTheta, at::kCPU, 1 << 20);
  const double angles[] = {1 << 20, (1 << 20) * 0.01};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(table[0][0][i].item<float>(), static_cast<float>(std::cos(angles[i])));
    EXPECT_EQ(table[0][1][i].item<float>(), static_cast<float>(std::sin(angles[i])));
  }
}

TEST(RopeInPlace, WritesItsArgumentAndSavesNoCopy) {
  at::manual_seed(13);
  const Tensor leaf = at::randn({1, 5, 3, 8}).requires_grad_();
  Tensor x = leaf * 2;
  const void* memory = x.const_data_ptr();
  const Tensor y = rope_(x, 2, rope_table(5, 8, kTheta, at::kCPU));
  EXPECT_EQ(y.const_data_ptr(), memory);
  EXPECT_TRUE(close_to(y, plain(leaf * 2, 2), tolerance(at::kFloat, 2)));
  y.sum().backward();
  EXPECT_TRUE(leaf.grad().defined());
  EXPECT_THROW(rope_(leaf, 2, rope_table(5, 8, kTheta, at::kCPU)),
               c10::Error);  // a leaf that requires a gradient
}

// Through a view of the projection (autograd's CopySlices) the gradient is the same.
TEST(RopeInPlace, ThroughAView) {
  at::manual_seed(14);
  const Tensor x = at::randn({2, 5, 24}), grad = at::randn({2, 5, 3, 8});
  const Tensor table = rope_table(5, 8, kTheta, at::kCPU);
  const Tensor a = x.clone().requires_grad_(), b = x.clone().requires_grad_();
  rope_((a * 1).view({2, 5, 3, 8}), 2, table).backward(grad);
  rope_(at::_unsafe_view(b * 1, {2, 5, 3, 8}), 2, table).backward(grad);
  EXPECT_TRUE(test::bitwise_equal(a.grad(), b.grad()));
}

TEST(RopeGradient, FiniteDifferences) {
  at::manual_seed(15);
  EXPECT_TRUE(
      test::finite_difference_check([](const Tensor& x) { return ours(x, 2); }, at::randn({2, 6, 3, 10})));
}

TEST(RopeMutation, BrokenVariantsFail) {
  at::manual_seed(16);
  const Tensor qkv = at::randn({1, 9, 3, 12});
  const Tensor got = ours(qkv, 2);
  const auto close = tolerance(at::kFloat, 2);
  ASSERT_TRUE(close_to(got, plain(qkv, 2), close));
  EXPECT_FALSE(close_to(got, plain(qkv, 2, kTheta, 0, -1), close));  // rotated the other way
  EXPECT_FALSE(close_to(got, plain(qkv, 3), close));                 // values rotated too
  EXPECT_FALSE(close_to(got, plain(qkv, 2, kTheta, 1), close));      // off by one position
}

TEST(RopeChecks, RefusesWrongShapes) {
  const Tensor table = rope_table(5, 8, kTheta, at::kCPU);
  EXPECT_THROW(rope_(at::zeros({1, 4, 3, 8}), 2, table), c10::Error);
  EXPECT_THROW(rope_(at::zeros({1, 5, 3, 8}), 4, table), c10::Error);
  EXPECT_THROW(rope_(at::zeros({1, 3, 5, 8}).transpose(1, 2), 2, table), c10::Error);
  EXPECT_THROW(rope_table(5, 7, kTheta, at::kCPU), c10::Error);
}

std::pair<int64_t, int64_t> held_and_peak(at::Device device) {
  install_allocators();
  Ledger& ledger = device.is_meta() ? meta_ledger() : cpu_ledger();
  const auto options = at::TensorOptions().device(device);
  const Tensor table = rope_table(64, 16, kTheta, device);
  const Tensor leaf = at::zeros({2, 64, 6, 16}, options).requires_grad_();
  const Tensor grad = at::ones({2, 64, 6, 16}, options);
  Tensor x = at::_unsafe_view(leaf, leaf.sizes());  // shares the memory, but is no leaf
  ledger.reset_peaks();
  const int64_t before = ledger.allocated();
  const Tensor y = rope_(x, 4, table);
  const int64_t held = ledger.allocated() - before;
  y.backward(grad);
  return {held, ledger.peak() - before};
}

TEST(RopeMemory, ForwardAllocatesNothingAndMetaPredictsTheCpu) {
  const auto cpu = held_and_peak(at::kCPU), meta = held_and_peak(at::kMeta);
  EXPECT_EQ(cpu.first, 0);
  EXPECT_GE(cpu.second, 2 * 64 * 6 * 16 * 4);
  EXPECT_EQ(cpu, meta);
}

}  // namespace
}  // namespace moelab
