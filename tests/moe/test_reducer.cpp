#include "moe/reducer.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/kernels/reference.h"
#include "tests/moe/thread_ranks.h"

namespace moelab {
namespace {

using test::bitwise_equal;

// Terms whose fp32 sum depends on the order: of several magnitudes.
std::vector<at::Tensor> terms_of(int64_t ranks, c10::ScalarType dtype) {
  at::manual_seed(31);
  std::vector<at::Tensor> terms;
  for (int64_t r = 0; r < ranks; ++r) {
    terms.push_back((at::randn({7, 13}) * at::pow(10.0, at::randn({7, 13}))).to(dtype));
  }
  return terms;
}

// In fp32 in the order of the terms, rounded once; or, which is another sum, after each addition.
at::Tensor plain_sum(const std::vector<at::Tensor>& terms, bool round_each = false) {
  const at::ScalarType dtype = terms[0].scalar_type();
  at::Tensor sum = at::zeros(terms[0].sizes(), at::kFloat);
  for (const at::Tensor& term : terms) {
    sum = sum + term.to(at::kFloat);
    if (round_each) sum = sum.to(dtype).to(at::kFloat);
  }
  return sum.to(dtype);
}

class ReducerSums : public ::testing::TestWithParam<c10::ScalarType> {};

TEST_P(ReducerSums, AreInRankOrderAndRoundedOnceForwardAndBackward) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    const auto terms = terms_of(ranks, GetParam());
    const at::Tensor want = plain_sum(terms);
    test::ThreadRanks(ranks).run([&](Communicator& communicator) {
      const Reducer reducer(communicator);
      const at::Tensor mine = terms[communicator.rank()].clone().requires_grad_();
      const at::Tensor sum = reducer.leave(mine);
      EXPECT_TRUE(bitwise_equal(sum, want));
      const int64_t bytes = 2 * static_cast<int64_t>(want.nbytes()), sent = bytes * (ranks - 1) / ranks;
      EXPECT_NEAR(communicator.sent_bytes(), sent, ranks * want.element_size());
      const at::Tensor gradient = at::ones_like(want);
      torch::autograd::backward({sum}, {gradient});
      EXPECT_TRUE(bitwise_equal(mine.grad(), gradient));  // not summed again

      const at::Tensor x = want.detach().clone().requires_grad_();
      const at::Tensor entered = reducer.enter(x);
      EXPECT_TRUE(bitwise_equal(entered, x));
      EXPECT_EQ(entered.const_data_ptr(), x.const_data_ptr());
      torch::autograd::backward({entered}, {terms[communicator.rank()]});
      EXPECT_TRUE(bitwise_equal(x.grad(), want));
    });
  }
}

// What the test above would see: sums in another order, and sums rounded after each addition.
TEST(ReducerSumMutants, OfAnotherKindHaveOtherBits) {
  const auto terms = terms_of(4, at::kFloat), halves = terms_of(4, at::kBFloat16);
  EXPECT_FALSE(bitwise_equal(plain_sum({terms.rbegin(), terms.rend()}), plain_sum(terms)));
  EXPECT_FALSE(bitwise_equal(plain_sum(halves, true), plain_sum(halves)));
}

INSTANTIATE_TEST_SUITE_P(Types, ReducerSums, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Reducer, OfOneRankChangesNothing) {
  const at::Tensor x = at::ones({3}).requires_grad_();
  EXPECT_TRUE(Reducer().enter(x).is_same(x));
  EXPECT_TRUE(Reducer().leave(x).is_same(x));
}

}  // namespace
}  // namespace moelab
