#include "kernels/dense/product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/memory/device_memory.h"
#include "kernels/memory/ledger.h"
#include "tests/kernels/reference.h"  // bitwise_equal

// Axes: M rows, K terms, N columns.
namespace moelab {
namespace {

class Product : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!multiplies_as_fp32(at::empty({0}, GetParam()))) {
      GTEST_SKIP() << "the CPU that this is built for multiplies " << GetParam();
    }
  }
  static at::Tensor random(at::IntArrayRef sizes) { return at::randn(sizes).to(GetParam()); }

  // Each element may be off by one rounding to 16 bits and K roundings of fp32 sums, each of at most the sum
  // of the terms' sizes.
  static bool is_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor wide_a = a.detach().to(at::kDouble), wide_b = b.detach().to(at::kDouble),
                     exact = at::matmul(wide_a, wide_b), sizes = at::matmul(wide_a.abs(), wide_b.abs());
    const double rounding = GetParam() == at::kHalf ? 0x1p-11 : 0x1p-8,
                 summing = static_cast<double>(a.size(-1)) * 0x1p-23,
                 least = GetParam() == at::kHalf ? 0x1p-25 : 0;  // half of its smallest number
    const at::Tensor error = (out.detach().to(at::kDouble) - exact).abs();
    return (error <= exact.abs() * (1.01 * rounding) + sizes * summing + least).all().item<bool>();
  }
};

// Each operand as rows, or as the transpose of rows; sizes that are multiples of tiles, blocks and tasks, and
// sizes that are not.
TEST_P(Product, AgreesWithFloat64ForAnyShapeAndLayout) {
  at::manual_seed(3);
  for (const int64_t M : {1, 3, 5, 64, 130, 700}) {
    for (const int64_t K : {1, 17, 64, 300}) {
      for (const int64_t N : {1, 31, 64, 300}) {
        for (const int layout : {0, 1, 2, 3}) {
          const at::Tensor a = layout & 1 ? random({K, M}).t() : random({M, K}),
                           b = layout & 2 ? random({N, K}).t() : random({K, N});
          const at::Tensor around = at::full({M + 2, N}, -7, GetParam()), out = around.narrow(0, 1, M);
          product_out(out, a, b);
          EXPECT_TRUE(is_product(out, a, b)) << M << " " << K << " " << N << " layout " << layout;
          EXPECT_TRUE(around[0].eq(-7).all().item<bool>() && around[M + 1].eq(-7).all().item<bool>());
        }
      }
    }
  }
}

TEST_P(Product, HasTheSameBitsOnAnyNumberOfThreads) {
  const at::Tensor a = random({300, 96}), b = random({96, 520});
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    results.push_back(at::empty({300, 520}, GetParam()));
    product_out(results.back(), a, b);
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(test::bitwise_equal(results[0], results[1]));
  EXPECT_TRUE(test::bitwise_equal(results[0], results[2]));
}

TEST_P(Product, IsDifferentiableOverLeadingDimensions) {
  at::manual_seed(4);
  const at::Tensor a = random({2, 3, 33, 40}).requires_grad_(), b = random({2, 3, 50, 40}).requires_grad_(),
                   grad = random({2, 3, 33, 50});
  const at::Tensor out = matrix_product(a, b.transpose(2, 3));
  out.backward(grad);
  EXPECT_TRUE(is_product(out, a, b.transpose(2, 3)));
  EXPECT_TRUE(is_product(a.grad(), grad, b));
  EXPECT_TRUE(is_product(b.grad(), grad.transpose(2, 3), a));
}

// A dry run counts what the CPU allocates.
TEST_P(Product, MetaCountsTheCpusBytes) {
  install_allocators();
  const auto scratch = [&](c10::Device device) {
    const auto options = at::TensorOptions(GetParam()).device(device);
    const at::Tensor a = at::empty({700, 300}, options), b = at::empty({300, 300}, options),
                     out = at::empty({700, 300}, options);
    const int64_t before = device_memory(device).allocated;
    reset_peaks(device);
    if (!device.is_meta()) {
      a.zero_();
      b.zero_();
    }
    product_out(out, a, b);
    return device_memory(device).peak - before;
  };
  EXPECT_GT(scratch(c10::kCPU), 0);
  EXPECT_EQ(scratch(c10::kCPU), scratch(c10::kMeta));
}

INSTANTIATE_TEST_SUITE_P(Halves, Product, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return info.param == at::kHalf ? "fp16" : "bf16"; });

}  // namespace
}  // namespace moelab
