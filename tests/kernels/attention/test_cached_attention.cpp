#include <gtest/gtest.h>

#include "kernels/attention/attention.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

// Masked softmax in float64, with the mask made position by position: query i of S is at T - S + i.
at::Tensor reference(const at::Tensor& q, const at::Tensor& kv, AttentionSpan span = {}) {
  const int64_t S = q.size(1), T = kv.size(1), heads = q.size(2), kv_heads = kv.size(2) / 2;
  at::Tensor out = at::zeros({q.size(0), S, heads, q.size(3)}, at::kDouble);
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t group = head / (heads / kv_heads);
    for (int64_t i = 0; i < S; ++i) {
      const int64_t own = T - S + i;
      int64_t first = own;
      while (first > 0 && own / span.block - (first - 1) / span.block < span.blocks) --first;
      const at::Tensor seen = kv.narrow(1, first, own - first + 1).to(at::kDouble);
      const at::Tensor keys = seen.select(2, group), values = seen.select(2, kv_heads + group);
      const at::Tensor query = q.select(1, i).select(1, head).to(at::kDouble).unsqueeze(2);
      const at::Tensor scores = at::matmul(keys, query) / std::sqrt(static_cast<double>(q.size(3)));
      out.select(1, i).select(1, head).copy_((at::softmax(scores, 1) * values).sum(1));
    }
  }
  return out.flatten(2);
}

TEST(CachedAttention, IsCausalFromTheLastPosition) {
  at::manual_seed(5);
  const int64_t B = 2, T = 11, hd = 8;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t kv_heads : {6, 2, 1}) {
      const at::Tensor cache = at::randn({B, T + 3, 2 * kv_heads, hd}).to(dtype);  // not filled to the end
      const at::Tensor kv = cache.narrow(1, 0, T);
      for (const int64_t S : {1, 2, 10, 11}) {
        const at::Tensor packed = (at::randn({B, S, 6 + 2 * kv_heads, hd}) * 2).to(dtype);
        const at::Tensor q = packed.narrow(2, 0, 6);
        const at::Tensor got = cached_attention(q, kv);
        // bf16: roundings of weights and result; fp32: of both products and of the exponential of scores of
        // rms 2
        EXPECT_TRUE(test::close_to(got, reference(q, kv), test::tolerance(dtype, 4 * (hd + T), 2)))
            << dtype << ", " << kv_heads << " key heads, " << S << " positions";
      }
    }
  }
}

// Texts shorter and longer than a chunk of queries; one token, a few tokens, and the whole text at once.
TEST(CachedAttention, SeesTheSpanOfEachPosition) {
  at::manual_seed(6);
  const int64_t hd = 8;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const AttentionSpan span : {AttentionSpan{1, 1}, AttentionSpan{1, 4}, AttentionSpan{3, 2},
                                     AttentionSpan{1, 140}, AttentionSpan{64, 2}}) {
      for (const int64_t T : {11, 300}) {
        const at::Tensor kv = at::randn({2, T, 4, hd}).to(dtype);
        for (const int64_t S : {int64_t{1}, int64_t{7}, T - 1, T}) {
          const at::Tensor q = (at::randn({2, S, 6, hd}) * 2).to(dtype), got = cached_attention(q, kv, span);
          const auto allowed = test::tolerance(dtype, 4 * (hd + T), 2);
          EXPECT_TRUE(test::close_to(got, reference(q, kv, span), allowed))
              << dtype << ", blocks of " << span.block << ", " << S << " of " << T;
          const AttentionSpan wider{span.block, span.blocks + 1};
          if (wider.covers(T)) continue;
          EXPECT_FALSE(test::close_to(got, reference(q, kv, wider), allowed));
        }
      }
    }
  }
}

}  // namespace
}  // namespace moelab
