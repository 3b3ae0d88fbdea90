#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/memory/device_memory.h"
#include "tests/cuda_device.h"
#include "tests/kernels/attention/attention_reference.h"
#include "tests/kernels/cases/attention.h"
#include "tests/kernels/reference.h"

// Attention on a GPU, with and without a span, on the cases of the CPU's tests.
namespace moelab {
namespace {

using at::Tensor;
const c10::Device kGpu(c10::kCUDA, 0);

struct Result {
  Tensor out, q, k, v;  // the result and the gradients of the three parts
  std::vector<std::pair<const char*, Tensor>> named() const {
    return {{"out", out}, {"queries", q}, {"keys", k}, {"values", v}};
  }
};

template <class F>
Result run(const test::AttentionCase& c, const Tensor& qkv, const Tensor& grad, const F& f) {
  const Tensor leaf = qkv.detach().clone().requires_grad_();
  const Tensor out = f(leaf);
  out.backward(grad.to(out.options()));
  const auto d = leaf.grad().cpu().split_with_sizes({c.heads, c.kv, c.kv}, 2);
  return {out.detach().cpu(), d[0], d[1], d[2]};
}

std::vector<test::AttentionCase> cases() {
  std::vector<test::AttentionCase> all;
  for (const auto& list : {test::attention_cases(), test::attention_span_cases()}) {
    const auto listed = test::cases_for(test::Use::test, list);
    all.insert(all.end(), listed.begin(), listed.end());
  }
  return all;
}

Result ours(const test::AttentionCase& c, const test::AttentionInput& in, c10::Device device) {
  return run(c, in.qkv.to(device), in.grad, [&](const Tensor& x) {
    return causal_attention(x, c.heads, c.kv, AttentionPath::flash, c.span);
  });
}

Result written_out(const test::AttentionCase& c, const test::AttentionInput& in, at::ScalarType type) {
  return run(c, in.qkv.to(type), in.grad, [&](const Tensor& x) {
    return test::materialised_attention(x, c.heads, c.kv, test::hidden_keys(c.S, c.span));
  });
}

TEST(AttentionCuda, MatchesFloat64AndIsNotWorseThanTheFormulaInBf16) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();  // LibTorch's flash attention writes up to 15 numbers behind its logsumexp
  for (const test::AttentionCase& c : cases()) {
    const auto in = test::make_input(c);
    const auto got = ours(c, in, kGpu).named(), want = written_out(c, in, at::kDouble).named(),
               formula = written_out(c, in, c.dtype).named();
    const auto forward = test::tolerance(c.dtype, 8 * c.S, 3),
               backward = test::tolerance(c.dtype, 24 * c.S, 6);
    const bool alone = c.S == 1 || c.span.block * c.span.blocks == 1;  // softmax has no slope
    for (size_t i = 0; i < got.size(); ++i) {
      const auto& [name, reference] = want[i];
      const std::string where = std::string(c.name) + " " + test::dtype_name(c.dtype) + " " + name;
      if (alone && (i == 1 || i == 2)) {
        const double zero = 4 * backward.relative_norm * in.grad.norm().item<double>();
        EXPECT_LE(got[i].second.norm().item<double>(), zero) << where;
        continue;
      }
      EXPECT_TRUE(test::close_to(got[i].second, reference, i == 0 ? forward : backward)) << where;
      if (c.dtype != at::kBFloat16) continue;
      const double error = test::relative_error(got[i].second, reference);
      // flash rounds probabilities and their gradients, at most by 2^-9 each; it takes each row's sum of
      // gradients from the rounded result, which shows in a short window
      EXPECT_LE(error, c.span.covers(c.S) ? 0x1p-8 : 0x1.4p-8) << where;
      EXPECT_LE(error, 1.1 * test::relative_error(formula[i].second, reference)) << where;
    }
  }
}

// With run.deterministic: otherwise LibTorch's backward is not.
TEST(AttentionCuda, RunsAreBitwiseTheSame) {
  MOELAB_NEEDS_CUDA();
  at::globalContext().setDeterministicAlgorithms(true, false);
  for (const test::AttentionCase& c :
       {test::AttentionCase{"", 2, 700, 8, 2, 64, at::kBFloat16},
        test::AttentionCase{"", 2, 700, 8, 2, 64, at::kBFloat16, test::Use::test, {1, 200}}}) {
    const auto in = test::make_input(c);
    const auto first = ours(c, in, kGpu).named();
    for (int again = 0; again < 100; ++again) {
      const auto next = ours(c, in, kGpu).named();
      for (size_t i = 0; i < first.size(); ++i)
        EXPECT_TRUE(test::bitwise_equal(next[i].second, first[i].second)) << again << first[i].first;
    }
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST(AttentionCuda, NeverHoldsTheScores) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  constexpr int64_t S = 8192, heads = 2;
  const auto check = [](AttentionSpan span, const Tensor& documents) {
    const Tensor qkv = at::randn({1, S, 3 * heads, 64}, kGpu).to(at::kBFloat16).requires_grad_();
    const auto step = [&] {
      causal_attention(qkv, heads, heads, AttentionPath::flash, span, documents).sum().backward();
    };
    step();  // makes the workspaces that LibTorch makes once
    const int64_t before = device_memory(kGpu).allocated;
    reset_peaks(kGpu);
    step();
    EXPECT_LE(device_memory(kGpu).peak - before, heads * S * S * 2 / 4) << span.blocks;
  };
  for (const AttentionSpan span : {AttentionSpan{}, AttentionSpan{1, 256}, AttentionSpan{64, 4}})
    check(span, {});
  check(AttentionSpan{}.of_documents(256), at::zeros({1, S}, at::TensorOptions(kGpu).dtype(at::kInt)));
}

}  // namespace
}  // namespace moelab
