#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "kernels/update/ordered_sum.h"

namespace moelab {
namespace {

// Numbers of many sizes, so that another order of additions has other bits.
at::Tensor numbers(at::IntArrayRef shape, uint64_t seed, at::ScalarType type) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor exponent = at::empty(shape).uniform_(-9, 9, generator);
  return at::empty(shape).normal_(0, 1, generator).mul(exponent.exp()).to(type);
}

class OrderedSum : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Types, OrderedSum, testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

// LibTorch's additions of one row after another, in fp32; lengths around whole vectors and whole tasks.
TEST_P(OrderedSum, HasTheBitsOfOneRowAfterAnother) {
  for (const int64_t n : {0, 1, 7, 16, 33, 16384, 40001}) {
    for (const int64_t rows : {1, 2, 5}) {
      const at::Tensor rows_RN = numbers({rows, n}, 3, GetParam()), start_N = numbers({n}, 4, at::kFloat);
      at::Tensor added_N = start_N.clone(), fresh_N = rows_RN[0].to(at::kFloat).clone(),
                 backwards_N = start_N.clone();
      for (int64_t r = 0; r < rows; ++r) added_N.add_(rows_RN[r].to(at::kFloat));
      for (int64_t r = 1; r < rows; ++r) fresh_N.add_(rows_RN[r].to(at::kFloat));
      for (int64_t r = rows; r-- > 0;) backwards_N.add_(rows_RN[r].to(at::kFloat));
      at::Tensor sum_N = start_N.clone();
      add_in_order(sum_N, rows_RN);
      EXPECT_TRUE(sum_N.equal(added_N)) << rows << " rows of " << n;
      const bool order_is_seen = !added_N.equal(backwards_N);
      EXPECT_TRUE(order_is_seen || n < 1000 || rows == 1);
      sum_N = numbers({n}, 5, at::kFloat);
      add_in_order(sum_N, rows_RN, /*fresh=*/true);
      EXPECT_TRUE(sum_N.equal(fresh_N)) << rows << " rows of " << n;
    }
  }
}

// Each addition in fp32, rounded to the sum's type.
TEST_P(OrderedSum, RoundsABf16SumAtEachRow) {
  for (const int64_t n : {1, 16, 33, 40001}) {
    const at::Tensor rows_RN = numbers({5, n}, 3, GetParam()), start_N = numbers({n}, 4, at::kBFloat16);
    at::Tensor added_N = start_N, fresh_N = rows_RN[0].to(at::kBFloat16);
    const auto plus = [](const at::Tensor& sum, const at::Tensor& row) {
      return (sum.to(at::kFloat) + row.to(at::kFloat)).to(at::kBFloat16);
    };
    for (int64_t r = 0; r < 5; ++r) added_N = plus(added_N, rows_RN[r]);
    for (int64_t r = 1; r < 5; ++r) fresh_N = plus(fresh_N, rows_RN[r]);
    at::Tensor sum_N = start_N.clone();
    add_in_order(sum_N, rows_RN);
    EXPECT_TRUE(sum_N.equal(added_N)) << n;
    sum_N = numbers({n}, 5, at::kBFloat16);
    add_in_order(sum_N, rows_RN, /*fresh=*/true);
    EXPECT_TRUE(sum_N.equal(fresh_N)) << n;
  }
}

// A part of each row, as where sums pass through tiles.
TEST_P(OrderedSum, TakesRowsThatLieApart) {
  const at::Tensor wide_RN = numbers({3, 1000}, 6, GetParam()), part_RN = wide_RN.narrow(1, 77, 501);
  at::Tensor sum_N = at::empty({501}), want_N = at::empty({501});
  add_in_order(sum_N, part_RN, /*fresh=*/true);
  add_in_order(want_N, part_RN.contiguous(), /*fresh=*/true);
  EXPECT_TRUE(sum_N.equal(want_N));
}

TEST(OrderedSum, RefusesWhatDoesNotFit) {
  const at::Tensor sum_N = at::zeros({8});
  EXPECT_THROW(add_in_order(sum_N, at::zeros({2, 7})), c10::Error);
  EXPECT_THROW(add_in_order(sum_N, at::zeros({8})), c10::Error);
  EXPECT_THROW(add_in_order(sum_N, at::zeros({0, 8})), c10::Error);
  EXPECT_THROW(add_in_order(sum_N, at::zeros({8, 2}).t()), c10::Error);
  EXPECT_THROW(add_in_order(sum_N, at::zeros({2, 8}, at::kLong)), c10::Error);
  EXPECT_THROW(add_in_order(sum_N.to(at::kHalf), at::zeros({2, 8})), c10::Error);
}

}  // namespace
}  // namespace moelab
