#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/memory/ledger.h"
#include "tests/kernels/attention/attention_reference.h"
#include "tests/kernels/cases/attention.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

using at::Tensor;
using test::bitwise_equal;
using test::close_to;
using test::hidden_keys;
using Case = test::AttentionCase;

struct Result {
  Tensor out, q, k, v;  // the result and the gradients of the three parts
};

Result with_gradients(const Case& c, const Tensor& qkv, const Tensor& out, const Tensor& grad) {
  out.backward(grad.to(out.scalar_type()));
  const auto d = qkv.grad().split_with_sizes({c.heads, c.kv, c.kv}, 2);
  return {out.detach(), d[0], d[1], d[2]};
}

Result ours(const Case& c, const test::AttentionInput& in, AttentionSpan span) {
  const Tensor qkv = in.qkv.detach().clone().requires_grad_();
  return with_gradients(c, qkv, causal_attention(qkv, c.heads, c.kv, AttentionPath::flash, span), in.grad);
}

Result reference(const Case& c, const test::AttentionInput& in, AttentionSpan span) {
  const Tensor qkv = in.qkv.to(at::kDouble).requires_grad_();
  return with_gradients(c, qkv, test::materialised_attention(qkv, c.heads, c.kv, hidden_keys(c.S, span)),
                        in.grad);
}

void expect_same_bits(const Result& a, const Result& b) {
  EXPECT_TRUE(bitwise_equal(a.out, b.out));
  EXPECT_TRUE(bitwise_equal(a.q, b.q));
  EXPECT_TRUE(bitwise_equal(a.k, b.k));
  EXPECT_TRUE(bitwise_equal(a.v, b.v));
}

// Roundings and sums as in test_attention.cpp.
bool matches(const Case& c, const Result& got, const Result& want) {
  const auto forward = test::tolerance(c.dtype, 8 * c.S, 3), backward = test::tolerance(c.dtype, 24 * c.S, 6);
  return close_to(got.out, want.out, forward) && close_to(got.q, want.q, backward) &&
         close_to(got.k, want.k, backward) && close_to(got.v, want.v, backward);
}

class AttentionSpans : public ::testing::TestWithParam<Case> {
 protected:
  const Case c = GetParam();
  const test::AttentionInput in = test::make_input(GetParam());
};

TEST_P(AttentionSpans, MatchesTheMaskedScoresInFloat64) {
  const Result got = ours(c, in, c.span), want = reference(c, in, c.span);
  const auto forward = test::tolerance(c.dtype, 8 * c.S, 3), backward = test::tolerance(c.dtype, 24 * c.S, 6);
  EXPECT_EQ(got.out.scalar_type(), c.dtype);
  EXPECT_TRUE(close_to(got.out, want.out, forward));
  EXPECT_TRUE(close_to(got.v, want.v, backward));
  if (c.span.block * c.span.blocks == 1) {  // a query that sees only itself: softmax has no slope
    const double zero = 4 * backward.relative_norm * in.grad.norm().item<double>();
    EXPECT_LE(got.q.norm().item<double>(), zero);
    EXPECT_LE(got.k.norm().item<double>(), zero);
  } else {
    EXPECT_TRUE(close_to(got.q, want.q, backward));
    EXPECT_TRUE(close_to(got.k, want.k, backward));
  }
}

TEST_P(AttentionSpans, OneTokenMoreOrLessDoesNotPass) {
  // one more key, or only itself: too little for the gradients of 300 positions to show in bf16
  if (c.span.block * c.span.blocks == 1 || AttentionSpan{c.span.block, c.span.blocks + 1}.covers(c.S)) return;
  const Result got = ours(c, in, c.span);
  EXPECT_FALSE(matches(c, got, reference(c, in, {c.span.block, c.span.blocks + 1})));
  if (c.span.blocks > 1) {
    EXPECT_FALSE(matches(c, got, reference(c, in, {c.span.block, c.span.blocks - 1})));
  }
  EXPECT_FALSE(matches(c, got, reference(c, in, {c.span.block + 1, c.span.blocks})));
}

TEST_P(AttentionSpans, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto on = [&](int threads) {
    const test::ThreadScope scope(threads);
    return ours(c, in, c.span);
  };
  expect_same_bits(on(1), on(2));
}

TEST_P(AttentionSpans, ReadsNoMemoryThatItDidNotWrite) {
  const Result want = ours(c, in, c.span);
  at::globalContext().setDeterministicAlgorithms(true, true);  // fills new tensors: bytes with 255, a NaN
  const Result got = ours(c, in, c.span);
  at::globalContext().setDeterministicAlgorithms(false, false);
  expect_same_bits(got, want);
}

TEST_P(AttentionSpans, OneThatCoversTheSequenceHasTheBitsOfNone) {
  const Result none = ours(c, in, {});
  expect_same_bits(ours(c, in, {1, c.S}), none);
  expect_same_bits(ours(c, in, {16, (c.S + 15) / 16}), none);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionSpans,
                         ::testing::ValuesIn(test::cases_for(test::Use::test, test::attention_span_cases())),
                         [](const auto& info) { return test::case_name(info); });

TEST(AttentionSpanPairs, AreCountedOneByOne) {
  for (const int64_t S : {1, 2, 7, 64, 65, 100}) {
    for (const AttentionSpan span :
         {AttentionSpan{}, AttentionSpan{1, 1}, AttentionSpan{1, 7}, AttentionSpan{1, 100},
          AttentionSpan{8, 1}, AttentionSpan{8, 3}, AttentionSpan{13, 2}}) {
      EXPECT_EQ(span.pairs(S), static_cast<double>((~hidden_keys(S, span)).sum().item<int64_t>()));
      EXPECT_EQ(span.covers(S), hidden_keys(S, span).equal(hidden_keys(S, {})));
      for (int64_t i = 0; i < S; ++i) {
        const int64_t first = span.first(i);
        EXPECT_TRUE(test::sees_key(i, first, span) && (first == 0 || !test::sees_key(i, first - 1, span)))
            << i;
      }
    }
  }
}

// Wherever in a row documents begin; and no query reaches back further than its document.
TEST(AttentionSpanOfDocuments, SeesTheSameAndReachesNoFurther) {
  for (const int64_t longest : {1, 2, 7, 64, 100}) {
    for (const AttentionSpan span :
         {AttentionSpan{}, AttentionSpan{1, 1}, AttentionSpan{1, 7}, AttentionSpan{1, 100},
          AttentionSpan{8, 1}, AttentionSpan{8, 3}, AttentionSpan{13, 2}}) {
      const AttentionSpan bound = span.of_documents(longest);
      for (const int64_t start : {0, 1, 13, 150}) {
        for (int64_t i = start; i < start + longest; ++i) {
          EXPECT_EQ(bound.first(i, start), span.first(i, start)) << longest << " " << i;
          EXPECT_LE(bound.earliest(i), span.first(i, start)) << longest << " " << i;
        }
      }
      EXPECT_EQ(bound.earliest(1000), 1001 - std::min(longest, bound.block * bound.blocks));
    }
  }
}

TEST(AttentionSpanChecks, RefusesWhatIsNoSpan) {
  const Tensor qkv = at::zeros({1, 5, 3, 4});
  EXPECT_THROW(causal_attention(qkv, 1, 1, AttentionPath::flash, {0, 1}), c10::Error);
  EXPECT_THROW(causal_attention(qkv, 1, 1, AttentionPath::flash, {1, 0}), c10::Error);
  EXPECT_THROW(causal_attention(qkv, 1, 1, AttentionPath::materialised, {1, 4}), c10::Error);
}

TEST(AttentionSpanEmpty, NoSequences) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor qkv = at::zeros({0, 5, 8, 32}, dtype).requires_grad_();
    causal_attention(qkv, 4, 2, AttentionPath::flash, {1, 2}).sum().backward();
    EXPECT_EQ(qkv.grad().sizes(), qkv.sizes());
  }
}

struct Bytes {
  int64_t tensors, all, held;  // peaks without and with scratch; what is kept for backward
};

Bytes bytes_of_a_step(at::Device device, int64_t S, at::ScalarType dtype, AttentionSpan span) {
  install_allocators();
  Ledger& ledger = device.is_meta() ? meta_ledger() : cpu_ledger();
  const auto options = at::TensorOptions().device(device).dtype(dtype);
  const Tensor qkv = at::zeros({2, S, 4, 32}, options).requires_grad_();
  const Tensor grad = at::ones({2, S, 2 * 32}, options);
  const int64_t before = ledger.allocated();
  ledger.reset_peaks();
  Tensor out = causal_attention(qkv, 2, 1, AttentionPath::flash, span);
  const int64_t held = ledger.allocated() - before;
  out.backward(grad);
  return {ledger.tensor_peak() - before, ledger.peak() - before, held};
}

constexpr AttentionSpan kWindow{1, 100}, kBlocks{64, 4};

// Bytes are linear in S: the second differences are zero, scratch included.
TEST(AttentionSpanMemory, IsLinearInTheSequence) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const AttentionSpan span : {kWindow, kBlocks}) {
      std::vector<Bytes> at_S;
      for (const int64_t S : {512, 1024, 2048, 4096, 8192}) {
        at_S.push_back(bytes_of_a_step(at::kCPU, S, dtype, span));
      }
      for (size_t i = 2; i < at_S.size(); ++i) {
        const Bytes &a = at_S[i - 2], &b = at_S[i - 1], &c = at_S[i];
        EXPECT_EQ(c.all - b.all, 2 * (b.all - a.all)) << dtype;
        EXPECT_EQ(c.tensors - b.tensors, 2 * (b.tensors - a.tensors)) << dtype;
      }
      EXPECT_LT(at_S.back().all, 8192 * 8192 * 2 / 8) << dtype;
    }
  }
}

TEST(AttentionSpanMemory, KeepsWhatFlashKeepsAndMetaKnowsIt) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const AttentionSpan span : {kWindow, kBlocks}) {
      const Bytes cpu = bytes_of_a_step(at::kCPU, 400, dtype, span),
                  meta = bytes_of_a_step(at::kMeta, 400, dtype, span);
      const int64_t element = dtype == at::kFloat ? 4 : 2;
      EXPECT_EQ(cpu.held, 2 * 400 * 2 * (32 * element + 4));
      EXPECT_EQ(cpu.tensors, cpu.held + 2 * 400 * 4 * 32 * element);  // and the gradient
      EXPECT_EQ(meta.held, cpu.held);
      EXPECT_EQ(meta.tensors, cpu.tensors);
    }
  }
}

}  // namespace
}  // namespace moelab
