#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/blocked_attention.h"
#include "kernels/memory/ledger.h"
#include "tests/kernels/attention/attention_reference.h"
#include "tests/kernels/cases/attention.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

using at::Tensor;
using test::close_to;
using test::relative_error;
using test::Tolerance;

using Case = test::AttentionCase;

// `mask_from` 1 hides the future. The broken variants: 0 hides the present too, 2 shows one position of the
// future.
Tensor plain(const Tensor& qkv, int64_t heads, int64_t kv, int64_t mask_from = 1, double scale_factor = 1) {
  const Tensor hidden = at::ones({qkv.size(1), qkv.size(1)}, at::kBool).triu(mask_from);
  return test::materialised_attention(qkv, heads, kv, hidden, scale_factor);
}

struct Result {
  Tensor out, q, k, v;  // the result and the gradients of the three parts
};

template <class F>
Result run(const F& f, const Tensor& qkv0, const Tensor& grad, int64_t heads, int64_t kv) {
  const Tensor qkv = qkv0.detach().clone().requires_grad_();
  const Tensor out = f(qkv);
  out.backward(grad.to(out.scalar_type()));
  const auto d = qkv.grad().split_with_sizes({heads, kv, kv}, 2);
  return {out.detach(), d[0], d[1], d[2]};
}

class Attention : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto in = test::make_input(GetParam());
    qkv = in.qkv;
    grad = in.grad;
  }
  Result ours(AttentionPath path) const {
    const Case c = GetParam();
    return run([&](const Tensor& x) { return causal_attention(x, c.heads, c.kv, path); }, qkv, grad, c.heads,
               c.kv);
  }
  Result written_out(at::ScalarType dtype) const {
    const Case c = GetParam();
    return run([&](const Tensor& x) { return plain(x, c.heads, c.kv); }, qkv.to(dtype), grad, c.heads, c.kv);
  }
  // Roundings to the dtype: in forward scores, weights and the result; in backward as many again. Sums over
  // S.
  Tolerance forward_tolerance() const { return test::tolerance(GetParam().dtype, 8 * GetParam().S, 3); }
  Tolerance backward_tolerance() const { return test::tolerance(GetParam().dtype, 24 * GetParam().S, 6); }
  // A single position attends only to itself: the gradients of queries and keys are zero except for rounding.
  void expect_gradient(const Tensor& got, const Tensor& want, Tolerance tolerance,
                       const std::string& name) const {
    if (GetParam().S == 1 && name != "values") {
      EXPECT_LE(got.norm().item<double>(), 4 * tolerance.relative_norm * grad.norm().item<double>()) << name;
    } else {
      EXPECT_TRUE(close_to(got, want, tolerance)) << name;
    }
  }
  // `slack` 2: both sides are rounded.
  void expect_matches(const Result& got, const Result& want, double slack = 1) const {
    const Tolerance forward = forward_tolerance(), backward = backward_tolerance();
    const Tolerance wide{slack * backward.relative_norm, slack * backward.worst_in_rms};
    EXPECT_EQ(got.out.scalar_type(), GetParam().dtype);
    EXPECT_TRUE(
        close_to(got.out, want.out, Tolerance{slack * forward.relative_norm, slack * forward.worst_in_rms}));
    expect_gradient(got.q, want.q, wide, "queries");
    expect_gradient(got.k, want.k, wide, "keys");
    expect_gradient(got.v, want.v, wide, "values");
  }
  Tensor qkv, grad;
};

TEST_P(Attention, FlashMatchesFloat64) {
  expect_matches(ours(AttentionPath::flash), written_out(at::kDouble));
}

TEST_P(Attention, MaterialisedMatchesFloat64) {
  expect_matches(ours(AttentionPath::materialised), written_out(at::kDouble));
}

TEST_P(Attention, FlashAgreesWithMaterialised) {
  expect_matches(ours(AttentionPath::flash), ours(AttentionPath::materialised), 2);
}

TEST_P(Attention, FlashHasTheSameBitsOnAnyNumberOfThreads) {
  const auto on = [&](int threads) {
    const test::ThreadScope scope(threads);
    return ours(AttentionPath::flash);
  };
  const Result one = on(1), two = on(2);
  EXPECT_TRUE(test::bitwise_equal(one.out, two.out));
  EXPECT_TRUE(test::bitwise_equal(one.q, two.q));
  EXPECT_TRUE(test::bitwise_equal(one.k, two.k));
  EXPECT_TRUE(test::bitwise_equal(one.v, two.v));
}

TEST_P(Attention, FlashReadsNoMemoryThatItDidNotWrite) {
  const Result want = ours(AttentionPath::flash);
  at::globalContext().setDeterministicAlgorithms(true, true);  // fills new tensors: bytes with 255, a NaN
  const Result got = ours(AttentionPath::flash);
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_TRUE(test::bitwise_equal(got.out, want.out));
  EXPECT_TRUE(test::bitwise_equal(got.q, want.q));
  EXPECT_TRUE(test::bitwise_equal(got.k, want.k));
  EXPECT_TRUE(test::bitwise_equal(got.v, want.v));
}

class AttentionBf16 : public Attention {};

TEST_P(AttentionBf16, FlashIsNotWorseThanTheFormulaInBf16) {
  const Result got = ours(AttentionPath::flash), want = written_out(at::kDouble),
               other = written_out(at::kBFloat16);
  EXPECT_LE(relative_error(got.out, want.out), 3e-3);
  EXPECT_LE(relative_error(got.out, want.out), 1.1 * relative_error(other.out, want.out));
  EXPECT_LE(relative_error(got.q, want.q), 1.1 * relative_error(other.q, want.q));
  EXPECT_LE(relative_error(got.k, want.k), 1.1 * relative_error(other.k, want.k));
  // LibTorch's kernel rounds its running sum of dv to bf16 after each block of queries. Ours does not.
  const bool blocked = has_blocked_attention(qkv);
  EXPECT_LE(relative_error(got.v, want.v), (blocked ? 1.1 : 1.3) * relative_error(other.v, want.v));
  if (!blocked) return;
  EXPECT_LE(relative_error(got.q, want.q), 3e-3);
  EXPECT_LE(relative_error(got.k, want.k), 3e-3);
  EXPECT_LE(relative_error(got.v, want.v), 3e-3);
}

std::vector<Case> bf16_cases() {
  std::vector<Case> cases;
  for (const Case& c : test::cases_for(test::Use::test, test::attention_cases())) {
    if (c.dtype == at::kBFloat16 && c.S > 1) cases.push_back(c);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionBf16, ::testing::ValuesIn(bf16_cases()),
                         [](const auto& info) { return test::case_name(info); });
INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         ::testing::ValuesIn(test::cases_for(test::Use::test, test::attention_cases())),
                         [](const auto& info) { return test::case_name(info); });

TEST(AttentionEmpty, NoSequences) {
  for (AttentionPath path : {AttentionPath::flash, AttentionPath::materialised}) {
    for (auto dtype : {at::kFloat, at::kBFloat16}) {
      const Tensor qkv = at::zeros({0, 5, 8, 32}, dtype).requires_grad_();
      const Tensor out = causal_attention(qkv, 4, 2, path);
      EXPECT_EQ(out.sizes(), (std::vector<int64_t>{0, 5, 128}));
      out.sum().backward();
      EXPECT_EQ(qkv.grad().sizes(), qkv.sizes());
    }
  }
}

TEST(AttentionGradient, FiniteDifferences) {
  at::manual_seed(32);
  for (AttentionPath path : {AttentionPath::flash, AttentionPath::materialised}) {
    EXPECT_TRUE(test::finite_difference_check(
        [&](const Tensor& x) { return causal_attention(x, 4, 2, path); }, at::randn({2, 9, 8, 6})));
  }
}

TEST(AttentionMutation, BrokenVariantsFail) {
  at::manual_seed(33);
  const Tensor qkv = at::randn({1, 20, 8, 16}), q64 = qkv.to(at::kDouble);
  const auto close = test::tolerance(at::kFloat, 8 * 20, 3);
  for (AttentionPath path : {AttentionPath::flash, AttentionPath::materialised}) {
    const Tensor got = causal_attention(qkv, 4, 2, path);
    ASSERT_TRUE(close_to(got, plain(q64, 4, 2), close));
    EXPECT_FALSE(close_to(got, plain(q64, 4, 2, 2), close));         // sees one position ahead
    EXPECT_FALSE(close_to(got, plain(q64, 4, 2, 0), close));         // rows of NaN
    EXPECT_FALSE(close_to(got, plain(q64, 4, 2, 1, 1.001), close));  // scale
    EXPECT_FALSE(close_to(got, plain(q64, 4, 2, 1, -1), close));     // sign
    const Tensor swapped = q64.index_select(2, at::tensor({0, 2, 1, 3, 4, 5, 6, 7}));
    EXPECT_FALSE(close_to(got, plain(swapped, 4, 2), close));  // wrong group
  }
}

TEST(AttentionChecks, RefusesWrongShapes) {
  EXPECT_THROW(causal_attention(at::zeros({1, 5, 7, 4}), 4, 2, AttentionPath::flash), c10::Error);
  EXPECT_THROW(causal_attention(at::zeros({1, 5, 10, 4}), 4, 3, AttentionPath::flash), c10::Error);
}

struct Bytes {
  int64_t held, attention_kind, after, peak;
};

// Bytes that forward leaves allocated, bytes of these that are attention's, bytes left after backward, and
// the peak without scratch.
Bytes bytes_of_a_step(at::Device device, AttentionPath path, int64_t kv, at::ScalarType dtype,
                      int64_t hd = 16) {
  install_allocators();
  Ledger& ledger = device.is_meta() ? meta_ledger() : cpu_ledger();
  const auto options = at::TensorOptions().device(device).dtype(dtype);
  const Tensor qkv = at::zeros({2, 40, 4 + 2 * kv, hd}, options).requires_grad_();
  const Tensor grad = at::ones({2, 40, 4 * hd}, options);
  const int64_t before = ledger.allocated();
  const int64_t kind = ledger.by_kind()[static_cast<size_t>(Kind::attention)];
  ledger.reset_peaks();
  Tensor out = causal_attention(qkv, 4, kv, path);
  Bytes bytes{ledger.allocated() - before, ledger.by_kind()[static_cast<size_t>(Kind::attention)] - kind, 0,
              0};
  out.backward(grad);
  out = Tensor();
  bytes.after = ledger.allocated() - before;
  bytes.peak = ledger.tensor_peak() - before;
  return bytes;
}

TEST(AttentionMemory, FlashKeepsTheResultAndOneNumberARow) {
  for (int64_t kv : {1, 2, 4}) {
    for (auto dtype : {at::kFloat, at::kBFloat16}) {
      const Bytes cpu = bytes_of_a_step(at::kCPU, AttentionPath::flash, kv, dtype);
      const Bytes meta = bytes_of_a_step(at::kMeta, AttentionPath::flash, kv, dtype);
      const int64_t element = dtype == at::kFloat ? 4 : 2;
      EXPECT_EQ(cpu.held, 2 * 40 * 64 * element + 2 * 40 * 4 * 4);
      EXPECT_EQ(cpu.attention_kind, cpu.held);
      EXPECT_EQ(cpu.after, 2 * 40 * (4 + 2 * kv) * 16 * element);  // the gradient
      EXPECT_EQ(meta.held, cpu.held);
      EXPECT_EQ(meta.after, cpu.after);
    }
  }
}

TEST(AttentionMemory, BlockedHoldsNoMoreThanTheResultsAndTheirGradients) {
  constexpr int64_t kv = 2, hd = 32;
  if (!has_blocked_attention(at::empty({1, 1, 8, hd}, at::kBFloat16))) return;  // LibTorch's has copies
  const Bytes cpu = bytes_of_a_step(at::kCPU, AttentionPath::flash, kv, at::kBFloat16, hd);
  const Bytes meta = bytes_of_a_step(at::kMeta, AttentionPath::flash, kv, at::kBFloat16, hd);
  EXPECT_EQ(cpu.peak, cpu.held + cpu.after);
  EXPECT_EQ(meta.held, cpu.held);
  EXPECT_EQ(meta.after, cpu.after);
  EXPECT_EQ(meta.peak, cpu.peak);
}

TEST(AttentionMemory, FlashNeverHoldsTheScores) {
  install_allocators();
  constexpr int64_t S = 4096;
  const Tensor qkv = at::randn({1, S, 3, 32}).to(at::kBFloat16).requires_grad_();
  Ledger& ledger = cpu_ledger();
  const int64_t before = ledger.allocated();
  ledger.reset_peaks();
  causal_attention(qkv, 1, 1, AttentionPath::flash).sum().backward();
  EXPECT_LE(ledger.peak() - before, S * S * 2 / 4);
}

TEST(AttentionMemory, MaterialisedKeepsTheScores) {
  for (int64_t kv : {2, 4}) {
    const Bytes cpu = bytes_of_a_step(at::kCPU, AttentionPath::materialised, kv, at::kBFloat16);
    const Bytes meta = bytes_of_a_step(at::kMeta, AttentionPath::materialised, kv, at::kBFloat16);
    EXPECT_GE(cpu.held, 2 * 4 * 40 * 40 * (4 + 2));
    EXPECT_EQ(meta.held, cpu.held);
    EXPECT_EQ(meta.after, cpu.after);
  }
}

}  // namespace
}  // namespace moelab
