#pragma once
#include <ATen/ATen.h>

#include "tests/kernels/cases/case.h"

namespace moelab::test {

struct EmbeddingCase {
  const char* name;
  int64_t V, D, B, S;
  at::ScalarType dtype;
  Use use = Use::test;
  c10::Device device = c10::kCPU;
};

inline std::vector<EmbeddingCase> embedding_cases() {
  return {
      {"small", 256, 384, 4, 128, at::kFloat, Use::both},
      {"small", 256, 384, 4, 128, at::kBFloat16, Use::both},
      {"odd_sizes", 50, 37, 3, 41, at::kHalf},
      {"one_token", 1000, 70, 1, 1, at::kFloat},
      {"one_row", 1, 16, 2, 9, at::kFloat},
      {"no_sequences", 10, 16, 0, 9, at::kFloat},
      {"moe_micro", 256, 384, 8, 256, at::kFloat, Use::both},
      {"moe_micro", 256, 384, 8, 256, at::kBFloat16, Use::both},
      {"moe_nano", 50304, 512, 4, 1024, at::kBFloat16, Use::bench},
      {"32k_tokens", 50304, 2048, 8, 4096, at::kBFloat16, Use::gpu},
  };
}

struct EmbeddingInput {
  at::Tensor weight, tokens, grad;
};

// A third of the tokens is id 0, as blanks are in text.
inline EmbeddingInput make_input(const EmbeddingCase& c) {
  at::manual_seed(21);
  const at::Tensor weight = at::randn({c.V, c.D}, c.device).to(c.dtype);
  const at::Tensor tokens = at::randint(0, c.V, {c.B, c.S}, at::TensorOptions(c.device).dtype(at::kLong)) *
                            (at::rand({c.B, c.S}, c.device) > 0.3);
  return {weight, tokens.to(at::kLong), at::randn({c.B, c.S, c.D}, c.device).to(c.dtype)};
}

// Reads the tokens and a row of the weight for each; writes the result.
inline Work forward_work(const EmbeddingCase& c) {
  return {.bytes = static_cast<double>(c.B * c.S) * (8 + 2 * c.D * element_bytes(c.dtype))};
}

// Reads the tokens and a gradient row for each; writes the dense gradient of the weight.
inline Work backward_work(const EmbeddingCase& c) {
  return {.bytes = static_cast<double>(c.B * c.S) * (8 + c.D * element_bytes(c.dtype)) +
                   static_cast<double>(c.V * c.D) * element_bytes(c.dtype)};
}

}  // namespace moelab::test
