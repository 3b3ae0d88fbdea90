#pragma once
#include <ATen/ATen.h>

#include "kernels/attention/attention_span.h"
#include "tests/kernels/cases/case.h"

namespace moelab::test {

struct AttentionCase {
  const char* name;
  int64_t B, S, heads, kv, hd;
  at::ScalarType dtype;
  Use use = Use::test;
  AttentionSpan span = {};
  c10::Device device = c10::kCPU;
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
      {"32k_tokens", 8, 4096, 16, 16, 128, at::kBFloat16, Use::gpu},
      {"24k_tokens", 6, 4096, 12, 12, 128, at::kBFloat16, Use::gpu},
  };
}

// Sliding windows and blocks that are shorter than, as long as and longer than a kernel's own blocks, and
// that do not divide them.
inline std::vector<AttentionCase> attention_span_cases() {
  std::vector<AttentionCase> cases = {
      {"window_65", 2, 300, 4, 2, 64, at::kFloat, Use::test, {1, 65}},
      {"window_200", 1, 450, 2, 1, 24, at::kFloat, Use::test, {1, 200}},
      {"window_65", 2, 300, 4, 2, 24, at::kBFloat16, Use::test, {1, 65}},
      {"window_65", 2, 300, 4, 2, 64, at::kHalf, Use::test, {1, 65}},
      {"blocks", 2, 300, 4, 2, 64, at::kHalf, Use::test, {64, 2}},
      {"three_blocks_of_50", 1, 333, 4, 1, 24, at::kBFloat16, Use::test, {50, 3}},
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<AttentionCase> both = {
        {"small_window", 2, 65, 4, 4, 32, dtype, Use::both, {1, 20}},
        {"small_blocks", 2, 65, 4, 4, 32, dtype, Use::both, {8, 3}},
        {"window_1", 2, 140, 4, 2, 32, dtype, Use::test, {1, 1}},
        {"window_2", 2, 140, 4, 2, 32, dtype, Use::test, {1, 2}},
        {"window_of_a_block", 2, 384, 4, 2, 64, dtype, Use::test, {1, 128}},
        {"window_past_a_block", 2, 515, 4, 2, 96, dtype, Use::test, {1, 129}},
        {"window_but_one", 1, 300, 4, 1, 64, dtype, Use::test, {1, 299}},
        {"blocks", 2, 700, 6, 2, 32, dtype, Use::test, {64, 4}},
        {"one_block_of_3", 2, 200, 2, 2, 32, dtype, Use::test, {3, 1}},
        {"two_blocks_of_150", 1, 512, 2, 1, 64, dtype, Use::test, {150, 2}},
    };
    cases.insert(cases.end(), both.begin(), both.end());
    // moe-micro on long sequences: the time per token should stay the same
    for (const auto& [name, S] : {std::pair{"window_of_1024", 1024},
                                  {"window_of_2048", 2048},
                                  {"window_of_4096", 4096},
                                  {"window_of_8192", 8192}}) {
      cases.push_back({name, 1, S, 6, 6, 64, dtype, Use::bench, {1, 256}});
    }
    for (const auto& [name, S] : {std::pair{"blocks_of_2048", 2048}, {"blocks_of_8192", 8192}}) {
      cases.push_back({name, 1, S, 6, 6, 64, dtype, Use::bench, {64, 4}});
    }
  }
  return cases;
}

struct AttentionInput {
  at::Tensor qkv, grad;
};

inline AttentionInput make_input(const AttentionCase& c) {
  at::manual_seed(31);
  const at::Tensor qkv = at::randn({c.B, c.S, c.heads + 2 * c.kv, c.hd}, c.device).to(c.dtype);
  return {qkv, at::randn({c.B, c.S, c.heads * c.hd}, c.device).to(c.dtype)};
}

// Number of scores that the mask leaves, times the width of a head.
inline double scores_by_width(const AttentionCase& c) {
  return static_cast<double>(c.B * c.heads * c.hd) * c.span.pairs(c.S);
}

// Two products, q k^T and weights v. Reads qkv; writes the result, and one fp32 per row and head.
inline Work forward_work(const AttentionCase& c) {
  const double tokens = static_cast<double>(c.B * c.S);
  return {.bytes = tokens * (2 * c.heads + 2 * c.kv) * c.hd * element_bytes(c.dtype) + 4 * tokens * c.heads,
          .flops = 2 * 2 * scores_by_width(c),
          .products = c.dtype};
}

// Five products: the scores again, dv, the gradient of the weights, dq, dk. Reads qkv, the result, its
// gradient and one fp32 per row and head; writes the gradient of qkv.
inline Work backward_work(const AttentionCase& c) {
  const double tokens = static_cast<double>(c.B * c.S);
  return {.bytes = tokens * (4 * c.heads + 4 * c.kv) * c.hd * element_bytes(c.dtype) + 4 * tokens * c.heads,
          .flops = 2 * 5 * scores_by_width(c),
          .products = c.dtype};
}

}  // namespace moelab::test
