#pragma once
#include <ATen/ATen.h>

#include <cmath>

#include "kernels/moe/router.h"
#include "tests/kernels/cases/case.h"

namespace moelab::test {

struct RouterCase {
  const char* name;
  RouterScore score;
  RouterChoice choice;
  int64_t B, S, D, E, K;
  bool normalise;
  at::ScalarType dtype = at::kFloat;  // of x; logits are fp32 in any case
  Use use = Use::test;
  c10::Device device = c10::kCPU;
};

inline std::vector<RouterCase> router_cases() {
  using enum RouterScore;
  using enum RouterChoice;
  return {
      {"small", softmax, token, 3, 16, 32, 8, 2, true, at::kFloat, Use::both},
      {"small", softmax, token, 3, 16, 32, 8, 2, true, at::kBFloat16, Use::both},
      {"softmax_raw", softmax, token, 3, 16, 32, 8, 2, false},
      {"top_1", softmax, token, 2, 16, 17, 5, 1, false},
      {"sigmoid", sigmoid, token, 3, 16, 32, 8, 3, true},
      {"sigmoid_raw", sigmoid, token, 3, 16, 32, 8, 3, false},
      {"expert_choice", softmax, expert, 3, 16, 32, 8, 2, false},
      {"chunks", softmax, token, 3, 300, 64, 40, 4, true},
      {"chunks", softmax, token, 3, 300, 64, 40, 4, true, at::kBFloat16},
      {"chunks_sigmoid", sigmoid, token, 2, 530, 96, 16, 3, true},
      {"chunks_expert_choice", softmax, expert, 2, 530, 32, 20, 4, false},
      {"moe_micro", softmax, token, 8, 256, 384, 4, 2, true, at::kFloat, Use::both},
      {"moe_micro", softmax, token, 8, 256, 384, 4, 2, true, at::kBFloat16, Use::bench},
      {"many_experts", softmax, token, 2, 1024, 1024, 64, 8, true, at::kBFloat16, Use::bench},
      {"many_sigmoid", sigmoid, token, 2, 1024, 1024, 256, 8, true, at::kBFloat16, Use::bench},
      {"expert_choice", softmax, expert, 2, 1024, 1024, 64, 8, false, at::kBFloat16, Use::bench},
      {"64_experts", softmax, token, 8, 4096, 2048, 64, 8, true, at::kBFloat16, Use::gpu},
      {"128_experts_narrow", softmax, token, 6, 4096, 1536, 128, 8, true, at::kBFloat16, Use::gpu},
      {"128_experts", softmax, token, 8, 4096, 2048, 128, 8, true, at::kBFloat16, Use::gpu},
  };
}

struct RouterInput {
  at::Tensor x, w;
  RouterOptions options;
};

inline RouterInput make_input(const RouterCase& c) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({c.B * c.S, c.D}, c.device).to(c.dtype);
  const at::Tensor w = at::randn({c.E, c.D}, c.device) * (2 / std::sqrt(static_cast<double>(c.D)));
  return {x, w, {c.score, c.choice, c.K, c.normalise, c.S, (c.S * c.K + c.E - 1) / c.E}};
}

// Number of ids and weights that the router makes per token.
inline int64_t columns(const RouterCase& c) { return c.choice == RouterChoice::expert ? c.E : c.K; }

// The logits, in fp32. Reads x and w; writes logits, logsumexp, ids and weights.
inline Work forward_work(const RouterCase& c) {
  const double T = static_cast<double>(c.B * c.S);
  return {.bytes = T * c.D * element_bytes(c.dtype) + 4.0 * c.E * c.D + 4 * T * (c.E + 1 + 2 * columns(c)),
          .flops = 2 * T * c.D * c.E};
}

// dx and dw. Reads x, w, logits, logsumexp, ids and the gradient of the weights; writes dx and dw.
inline Work backward_work(const RouterCase& c) {
  const double T = static_cast<double>(c.B * c.S);
  return {
      .bytes = 2 * T * c.D * element_bytes(c.dtype) + 8.0 * c.E * c.D + 4 * T * (c.E + 1 + 2 * columns(c)),
      .flops = 2 * 2 * T * c.D * c.E};
}

}  // namespace moelab::test
