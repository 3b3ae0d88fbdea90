#pragma once
#include <ATen/ATen.h>

#include "tests/kernels/cases/case.h"

namespace moelab::test {

struct AttentionCase {
  const char* name;
  int64_t B, S, heads, kv, hd;
  at::ScalarType dtype;
  Use use = Use::test;
};

inline std::vector<AttentionCase> attention_cases() {
  return {
      {"small", 2, 65, 4, 4, 32, at::kFloat, Use::both},
      {"small", 2, 65, 4, 4, 32, at::kBFloat16, Use::both},
      {"two_groups", 2, 65, 4, 2, 24, at::kFloat},
      {"two_groups", 2, 300, 4, 2, 64, at::kBFloat16},
      {"one_group", 1, 300, 4, 1, 64, at::kFloat},
      {"one_group", 1, 300, 4, 1, 64, at::kBFloat16},
      {"three_blocks", 2, 259, 4, 2, 96, at::kBFloat16},
      {"three_wide", 1, 384, 3, 1, 128, at::kBFloat16},
      {"one_position", 3, 1, 4, 2, 10, at::kFloat},
      {"one_position", 3, 1, 4, 2, 32, at::kBFloat16},
      {"no_tiles", 2, 150, 4, 2, 24, at::kBFloat16},
      {"odd_sizes", 1, 7, 1, 1, 3, at::kFloat},
      {"moe_micro", 8, 256, 6, 6, 64, at::kFloat, Use::both},
      {"moe_micro", 8, 256, 6, 6, 64, at::kBFloat16, Use::both},
      {"moe_nano", 4, 1024, 8, 8, 64, at::kFloat, Use::bench},
      {"moe_nano", 4, 1024, 8, 8, 64, at::kBFloat16, Use::bench},
      {"grouped", 2, 1024, 16, 4, 128, at::kBFloat16, Use::bench},
  };
}

struct AttentionInput {
  at::Tensor qkv, grad;
};

inline AttentionInput make_input(const AttentionCase& c) {
  at::manual_seed(31);
  const at::Tensor qkv = at::randn({c.B, c.S, c.heads + 2 * c.kv, c.hd}).to(c.dtype);
  return {qkv, at::randn({c.B, c.S, c.heads * c.hd}).to(c.dtype)};
}

// Scores that the causal mask leaves, times the width of a head.
inline double scores_by_width(const AttentionCase& c) { return 0.5 * c.B * c.heads * c.S * (c.S + 1) * c.hd; }

// Two products, q k^T and weights v. Read qkv; written the result, and one fp32 a row and head.
inline Work forward_work(const AttentionCase& c) {
  const double tokens = static_cast<double>(c.B * c.S);
  return {.bytes = tokens * (2 * c.heads + 2 * c.kv) * c.hd * element_bytes(c.dtype) + 4 * tokens * c.heads,
          .flops = 2 * 2 * scores_by_width(c),
          .products = c.dtype};
}

// Five products: the scores again, dv, the gradient of the weights, dq, dk. Read qkv, the result, its
// gradient and one fp32 a row and head; written the gradient of qkv.
inline Work backward_work(const AttentionCase& c) {
  const double tokens = static_cast<double>(c.B * c.S);
  return {.bytes = tokens * (4 * c.heads + 4 * c.kv) * c.hd * element_bytes(c.dtype) + 4 * tokens * c.heads,
          .flops = 2 * 5 * scores_by_width(c),
          .products = c.dtype};
}

}  // namespace moelab::test
