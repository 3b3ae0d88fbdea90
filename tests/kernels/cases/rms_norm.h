#pragma once
#include <ATen/ATen.h>

#include "tests/kernels/cases/case.h"

namespace moelab::test {

struct RmsNormCase {
  const char* name;
  std::vector<int64_t> shape;
  at::ScalarType dtype;
  Use use = Use::test;
  c10::Device device = c10::kCPU;
};

inline std::vector<RmsNormCase> rms_norm_cases() {
  return {
      {"small", {4, 64, 384}, at::kFloat, Use::both},
      {"small", {4, 64, 384}, at::kBFloat16, Use::both},
      {"small", {4, 64, 384}, at::kHalf},
      {"one_row", {1, 1, 37}, at::kFloat},
      {"odd_sizes", {3, 333, 37}, at::kBFloat16},
      {"two_spans", {5, 1101}, at::kBFloat16},
      {"two_spans_of_packs", {6, 16 << 10}, at::kBFloat16},
      {"three_wide", {2, 5, 3}, at::kFloat},
      {"no_rows", {0, 5, 16}, at::kFloat},
      {"four_axes", {2, 65, 3, 24}, at::kBFloat16},
      {"many_rows", {1100, 128}, at::kFloat},
      {"moe_micro", {8, 256, 384}, at::kFloat, Use::both},
      {"moe_micro", {8, 256, 384}, at::kBFloat16, Use::both},
      {"wide", {2048, 2048}, at::kFloat, Use::bench},
      {"wide", {2048, 2048}, at::kBFloat16, Use::bench},
      {"32k_tokens", {32768, 2048}, at::kBFloat16, Use::gpu},
      {"24k_tokens", {24576, 1536}, at::kBFloat16, Use::gpu},
  };
}

struct RmsNormInput {
  at::Tensor x, weight, grad;
};

inline RmsNormInput make_input(const RmsNormCase& c) {
  at::manual_seed(7);
  const at::Tensor x = (3 * at::randn(c.shape, c.device)).to(c.dtype);
  const at::Tensor weight = 1 + 0.3 * at::randn({x.size(-1)}, c.device);
  return {x, weight, at::randn(c.shape, c.device).to(c.dtype)};
}

inline double rows_of(const RmsNormCase& c) {
  double rows = 1;
  for (size_t i = 0; i + 1 < c.shape.size(); ++i) rows *= static_cast<double>(c.shape[i]);
  return rows;
}

// Reads x; writes y and one fp32 per row.
inline Work forward_work(const RmsNormCase& c) {
  const double rows = rows_of(c), D = static_cast<double>(c.shape.back());
  return {.bytes = 2 * rows * D * element_bytes(c.dtype) + 4 * rows + 4 * D};
}

// Reads dy, x and one fp32 per row; writes dx and dweight.
inline Work backward_work(const RmsNormCase& c) {
  const double rows = rows_of(c), D = static_cast<double>(c.shape.back());
  return {.bytes = 3 * rows * D * element_bytes(c.dtype) + 4 * rows + 8 * D};
}

}  // namespace moelab::test
