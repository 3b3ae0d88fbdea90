#include "kernels/dense/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernels/memory/ledger.h"
#include "kernels/meta/aten_meta.h"
#include "kernels/vector/blocked_product.h"
#include "tests/kernels/reference.h"

// Axes: T rows, K width of x, N width of the result.
namespace moelab {
namespace {

struct Sizes {
  int64_t T, K, N;
};
// Blocks have 64 rows, 128 columns and 512 terms: sizes below, at and above each; few rows compared with the
// terms, in one panel and in two; more rows than a task has. The last case goes to at::linear.
constexpr std::array<Sizes, 10> kSizes = {{{64, 32, 32},
                                           {65, 64, 96},
                                           {127, 160, 288},
                                           {200, 512, 128},
                                           {70, 544, 160},
                                           {1100, 32, 64},
                                           {150, 1056, 160},
                                           {64, 2112, 32},
                                           {1100, 1056, 416},
                                           {40, 24, 18}}};

struct Input {
  at::Tensor x, w, dy;
};

Input make_input(const Sizes& s, at::ScalarType type) {
  at::manual_seed(11);
  return {at::randn({s.T, s.K}).to(type),
          (at::randn({s.N, s.K}) / std::sqrt(static_cast<double>(s.K))).to(type),
          at::randn({s.T, s.N}).to(type)};
}

std::array<at::Tensor, 3> run(const Input& in) {
  const at::Tensor x = in.x.clone().requires_grad_(), w = in.w.clone().requires_grad_();
  const at::Tensor y = moelab::linear(x, w);
  y.backward(in.dy);
  return {y.detach(), x.grad(), w.grad()};
}

std::array<at::Tensor, 3> reference(const Input& in) {
  const at::Tensor x = in.x.to(at::kDouble), w = in.w.to(at::kDouble), dy = in.dy.to(at::kDouble);
  return {x.mm(w.t()), dy.mm(w), dy.t().mm(x)};
}

bool close(const std::array<at::Tensor, 3>& got, const Input& in, const Sizes& s) {
  const auto want = reference(in);
  const auto tolerance = test::tolerance(in.x.scalar_type(), s.T + s.K + s.N);  // one rounding of each result
  return std::equal(got.begin(), got.end(), want.begin(), [&](const at::Tensor& a, const at::Tensor& b) {
    return bool(test::close_to(a, b, tolerance));
  });
}

class LinearOf : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(LinearOf, AgreesWithFloat64) {
  for (const Sizes& s : kSizes) {
    const Input in = make_input(s, GetParam());
    EXPECT_TRUE(close(run(in), in, s)) << s.T << " " << s.K << " " << s.N;
  }
}

TEST_P(LinearOf, MutantsAreCaught) {
  for (const Sizes& s : kSizes) {
    Input in = make_input(s, GetParam());
    const auto got = run(in);
    in.x[s.T - 1][s.K - 1] += 4;  // one term of the last row and column
    EXPECT_FALSE(close(got, in, s));
    in = make_input(s, GetParam());
    in.w = in.w.roll(1, 1);  // every row of weights is shifted by one term
    EXPECT_FALSE(close(got, in, s));
  }
}

TEST(Linear, TakesMoreThanTwoAxesAndOtherTypes) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({3, 50, 64}), w = at::randn({32, 64});
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor got = moelab::linear(x.to(type), w.to(type));
    EXPECT_EQ(got.scalar_type(), type);
    const at::Tensor want = at::matmul(x.to(type).to(at::kDouble), w.to(type).to(at::kDouble).t());
    EXPECT_TRUE(test::close_to(got, want, test::tolerance(type, 64)));
  }
}

TEST_P(LinearOf, ThreadsChangeNoBit) {
  for (const Sizes& s : kSizes) {
    if (!has_blocked_product(GetParam(), s.N, s.K)) continue;  // LibTorch's product
    const Input in = make_input(s, GetParam());
    const auto on_threads = [&](int count) {
      const test::ThreadScope scope(count);
      return run(in);
    };
    const auto want = on_threads(1);
    for (const int count : {2, 3, 8}) {
      const auto got = on_threads(count);
      for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(test::bitwise_equal(got[i], want[i])) << count;
    }
  }
}

TEST_P(LinearOf, MetaAllocatesWhatTheCpuAllocates) {
  install_allocators();
  install_meta_kernels();
  for (const Sizes& s : kSizes) {
    if (!has_blocked_product(GetParam(), s.N, s.K)) continue;  // LibTorch's product, with a library's scratch
    const auto peak_on = [&](c10::Device device, Ledger& ledger) {
      const Input in = make_input(s, GetParam());
      const Input there{in.x.to(device), in.w.to(device), in.dy.to(device)};
      const int64_t before = ledger.allocated();
      ledger.reset_peaks();
      run(there);
      return ledger.peak() - before;
    };
    EXPECT_EQ(peak_on(at::kMeta, meta_ledger()), peak_on(at::kCPU, cpu_ledger())) << s.T;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LinearOf, ::testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& info) { return c10::toString(info.param); });

}  // namespace
}  // namespace moelab
