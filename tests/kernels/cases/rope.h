#pragma once
#include <ATen/ATen.h>

#include "tests/kernels/cases/case.h"

namespace moelab::test {

struct RopeCase {
  const char* name;
  int64_t B, S, N, rotated, hd;
  at::ScalarType dtype;
  Use use = Use::test;
  c10::Device device = c10::kCPU;
};

inline std::vector<RopeCase> rope_cases() {
  return {
      {"small", 2, 300, 12, 8, 64, at::kFloat, Use::both},
      {"small", 2, 300, 12, 8, 64, at::kBFloat16, Use::both},
      {"odd_sizes", 2, 33, 6, 5, 24, at::kHalf},
      {"one_position", 1, 1, 3, 2, 10, at::kFloat},
      {"one_pair", 2, 70, 3, 3, 2, at::kFloat},
      {"no_sequences", 0, 5, 3, 2, 16, at::kFloat},
      {"nothing_rotated", 2, 5, 3, 0, 16, at::kFloat},
      {"moe_micro", 8, 256, 18, 12, 64, at::kFloat, Use::both},
      {"moe_micro", 8, 256, 18, 12, 64, at::kBFloat16, Use::both},
      {"32k_tokens", 8, 4096, 48, 32, 128, at::kBFloat16, Use::gpu},
      {"24k_tokens", 6, 4096, 36, 24, 128, at::kBFloat16, Use::gpu},
  };
}

struct RopeInput {
  at::Tensor qkv, grad;
};

inline RopeInput make_input(const RopeCase& c) {
  at::manual_seed(11);
  const at::Tensor qkv = at::randn({c.B, c.S, c.N, c.hd}, c.device).to(c.dtype);
  return {qkv, at::randn({c.B, c.S, c.N, c.hd}, c.device).to(c.dtype)};
}

// Reads and writes the rotated heads in place; the table is small in comparison.
inline Work forward_work(const RopeCase& c) {
  return {.bytes = 2.0 * c.B * c.S * c.rotated * c.hd * element_bytes(c.dtype)};
}

// A new tensor of all heads: reads the gradient, writes its rotation.
inline Work backward_work(const RopeCase& c) {
  return {.bytes = 2.0 * c.B * c.S * c.N * c.hd * element_bytes(c.dtype)};
}

}  // namespace moelab::test
