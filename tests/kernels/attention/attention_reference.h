#pragma once
#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "kernels/attention/attention_span.h"

namespace moelab::test {

// Whether query i sees key j, by the definition: j is not later, and the numbers of their blocks differ by
// less than `blocks`.
inline bool sees_key(int64_t i, int64_t j, AttentionSpan span) {
  return j <= i && i / span.block - j / span.block < span.blocks;
}

// (S, S) bool: true at [i][j] where query i does not see key j.
inline at::Tensor hidden_keys(int64_t S, AttentionSpan span) {
  at::Tensor mask = at::empty({S, S}, at::kBool);
  auto at = mask.accessor<bool, 2>();
  for (int64_t i = 0; i < S; ++i) {
    for (int64_t j = 0; j < S; ++j) at[i][j] = !sees_key(i, j, span);
  }
  return mask;
}

// Attention written out in qkv's dtype (float64: the reference), head by head, with whole scores. qkv (B, S,
// heads + 2 kv, hd); `hidden` (S, S) bool: true at [i][j] where query i does not see key j. Returns (B, S,
// heads * hd).
inline at::Tensor materialised_attention(const at::Tensor& qkv, int64_t heads, int64_t kv,
                                         const at::Tensor& hidden, double scale_factor = 1) {
  const double scale = scale_factor / std::sqrt(static_cast<double>(qkv.size(3)));
  std::vector<at::Tensor> out;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t g = h / (heads / kv);
    const at::Tensor q = qkv.select(2, h), k = qkv.select(2, heads + g), v = qkv.select(2, heads + kv + g);
    const at::Tensor scores = (at::matmul(q, k.transpose(1, 2)) * scale).masked_fill(hidden, -INFINITY);
    out.push_back(at::matmul(at::softmax(scores, -1), v));
  }
  return at::cat(out, -1);
}

}  // namespace moelab::test
