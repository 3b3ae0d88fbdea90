#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/dense/embedding.h"
#include "kernels/memory/ledger.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/embedding.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

using at::Tensor;
using test::close_to;
using test::tolerance;

// float64, by a product with one-hot rows, which has nothing in common with a gather.
Tensor plain(const Tensor& weight, const Tensor& tokens) {
  const Tensor one_hot = at::one_hot(tokens.flatten(), weight.size(0)).to(at::kDouble);
  auto shape = tokens.sizes().vec();
  shape.push_back(weight.size(1));
  return at::matmul(one_hot, weight.to(at::kDouble)).view(shape);
}

class Embedding : public ::testing::TestWithParam<test::EmbeddingCase> {
 protected:
  void SetUp() override {
    MOELAB_NEEDS(GetParam().device);
    const auto in = test::make_input(GetParam());
    weight = in.weight;
    tokens = in.tokens;
    grad = in.grad;
  }
  Tensor weight, tokens, grad;
};

TEST_P(Embedding, MatchesFloat64) {
  const auto c = GetParam();
  const Tensor w = weight.clone().requires_grad_(), w64 = weight.to(at::kDouble).requires_grad_();
  const Tensor y = moelab::embedding(w, tokens), y64 = plain(w64, tokens);
  y.backward(grad);
  y64.backward(grad.to(at::kDouble));
  EXPECT_TRUE(test::bitwise_equal(y, y64.detach().to(c.dtype)));
  EXPECT_EQ(w.grad().scalar_type(), c.dtype);
  EXPECT_TRUE(close_to(w.grad(), w64.grad(), tolerance(c.dtype, c.B * c.S)));
}

TEST_P(Embedding, SameBitsOnAnyNumberOfThreads) {
  const auto on = [&](int threads) {
    const test::ThreadScope scope(threads);
    const Tensor w = weight.clone().requires_grad_();
    moelab::embedding(w, tokens).backward(grad);
    return w.grad();
  };
  const Tensor one = on(1);
  EXPECT_TRUE(test::bitwise_equal(one, on(2)));
  EXPECT_TRUE(test::bitwise_equal(one, on(3)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Embedding,
                         ::testing::ValuesIn(test::on_every_device(test::cases_for(test::Use::test,
                                                                                   test::embedding_cases()))),
                         [](const auto& info) { return test::case_name(info); });

// 4096 gradients of one: a bf16 sum gets stuck at 256, an fp32 sum reaches 4096 exactly.
TEST(EmbeddingBf16, SumsInFp32) {
  const Tensor weight = at::zeros({3, 20}, at::kBFloat16).requires_grad_();
  moelab::embedding(weight, at::ones({4, 1024}, at::kLong)).backward(at::ones({4, 1024, 20}, at::kBFloat16));
  EXPECT_TRUE(weight.grad()[1].eq(4096).all().item<bool>());
  EXPECT_TRUE(weight.grad()[0].eq(0).all().item<bool>());
  EXPECT_TRUE(weight.grad()[2].eq(0).all().item<bool>());
}

TEST(EmbeddingGradient, FiniteDifferences) {
  at::manual_seed(22);
  const Tensor tokens = at::randint(0, 7, {2, 9}).to(at::kLong);
  EXPECT_TRUE(test::finite_difference_check([&](const Tensor& w) { return moelab::embedding(w, tokens); },
                                            at::randn({7, 5})));
}

TEST(EmbeddingMutation, BrokenVariantsFail) {
  at::manual_seed(23);
  const Tensor weight = at::randn({7, 5}).requires_grad_(), tokens = at::randint(0, 6, {2, 9}).to(at::kLong);
  EXPECT_FALSE(close_to(moelab::embedding(weight, tokens), plain(weight, tokens + 1), tolerance(at::kFloat)));
  const Tensor w64 = weight.detach().to(at::kDouble).requires_grad_();
  const Tensor grad = at::randn({2, 9, 5});
  moelab::embedding(weight, tokens).backward(grad);
  plain(w64, tokens).backward(grad.to(at::kDouble));
  Tensor lost_one = w64.grad().clone();  // as if the last token had been forgotten
  lost_one[tokens[1][8].item<int64_t>()] -= grad[1][8];
  ASSERT_TRUE(close_to(weight.grad(), w64.grad(), tolerance(at::kFloat, 18)));
  EXPECT_FALSE(close_to(weight.grad(), lost_one, tolerance(at::kFloat, 18)));
}

TEST(EmbeddingChecks, RefusesIdsOutOfRange) {
  const Tensor weight = at::zeros({7, 5});
  EXPECT_THROW(moelab::embedding(weight, at::full({1, 2}, 7, at::kLong)), c10::Error);
  EXPECT_THROW(moelab::embedding(weight, at::full({1, 2}, -1, at::kLong)), c10::Error);
  EXPECT_THROW(moelab::embedding(weight, at::zeros({1, 2}, at::kInt)), c10::Error);
}

int64_t peak_of_a_step(at::Device device) {
  install_allocators();
  Ledger& ledger = device.is_meta() ? meta_ledger() : cpu_ledger();
  const auto options = at::TensorOptions().device(device).dtype(at::kBFloat16);
  const Tensor weight = at::zeros({100, 48}, options).requires_grad_();
  const Tensor tokens = at::zeros({3, 50}, options.dtype(at::kLong)), grad = at::ones({3, 50, 48}, options);
  ledger.reset_peaks();
  const int64_t before = ledger.allocated();
  moelab::embedding(weight, tokens).backward(grad);
  return ledger.peak() - before;
}

TEST(EmbeddingMemory, MetaPredictsTheCpuToTheByte) {
  const int64_t cpu = peak_of_a_step(at::kCPU);
  EXPECT_GE(cpu, 100 * 48 * 2 + (101 + 150) * 8);
  EXPECT_EQ(cpu, peak_of_a_step(at::kMeta));
}

}  // namespace
}  // namespace moelab
