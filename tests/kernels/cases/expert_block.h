#pragma once
#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <vector>

#include "tests/kernels/cases/dispatch.h"

namespace moelab::test {

struct MoeCase {
  const char* name;
  int64_t B, S, D, E, K, F;
  double capacity_factor;             // 0: dropless
  bool one_expert = false;            // every token takes expert 0 first
  at::ScalarType dtype = at::kFloat;  // of a benchmark; tests compute each case in fp32 and in bf16
  Use use = Use::test;
  c10::Device device = c10::kCPU;
  Load load = Load::even;
  int64_t tokens() const { return B * S; }
  int64_t rows() const {
    return capacity_factor == 0 ? tokens() * K : E * B * expert_capacity(S, K, E, capacity_factor);
  }
};

// Layers of models that fill a GPU, under every load; also in capacity mode, whose size does not depend on
// the load.
inline void add_gpu_cases(std::vector<MoeCase>& cases) {
  const MoeCase shapes[] = {{"", 8, 4096, 2048, 64, 8, 1024, 0},
                            {"", 6, 4096, 1536, 128, 8, 256, 0},
                            {"", 8, 4096, 2048, 128, 8, 768, 0}};
  const char* const names[][4] = {
      {"64_of_1024", "64_of_1024_zipf", "64_of_1024_four_hot", "64_of_1024_capacity"},
      {"128_of_256", "128_of_256_zipf", "128_of_256_four_hot", "128_of_256_capacity"},
      {"128_of_768", "128_of_768_zipf", "128_of_768_four_hot", "128_of_768_capacity"}};
  for (size_t s = 0; s < std::size(shapes); ++s) {
    for (size_t n = 0; n < 4; ++n) {
      MoeCase c = shapes[s];
      c.name = names[s][n];
      c.dtype = at::kBFloat16;
      c.use = Use::gpu;
      if (n < 3) c.load = std::array{Load::even, Load::zipf, Load::four_hot}[n];
      if (n == 3) c.capacity_factor = 1.25;
      cases.push_back(c);
    }
  }
}

inline const std::vector<MoeCase>& moe_cases() {
  static const std::vector<MoeCase> all = [] {
    std::vector<MoeCase> cases = {
        {"small_dropless", 2, 24, 32, 4, 2, 48, 0, false, at::kFloat, Use::both},
        {"odd_sizes", 3, 7, 19, 5, 3, 13, 0},
        {"blocks_and_half_of_one", 2, 150, 32, 4, 2, 48, 0},
        {"blocks_and_most_of_one", 2, 240, 32, 4, 2, 48, 0},
        {"less_than_a_block", 2, 90, 32, 4, 2, 48, 0},
        {"one_token", 1, 1, 16, 4, 2, 24, 0},
        {"no_tokens", 0, 8, 16, 4, 2, 24, 0},
        {"top_1", 2, 16, 32, 4, 1, 40, 0},
        {"all_experts", 2, 9, 16, 3, 3, 20, 0},
        {"empty_experts", 1, 3, 16, 16, 2, 24, 0},
        {"all_to_one", 2, 16, 32, 4, 2, 24, 0, true},
        {"small_capacity", 2, 24, 32, 4, 2, 48, 1.25, false, at::kBFloat16, Use::both},
        {"capacity_drops", 2, 24, 32, 4, 2, 48, 0.5, true},
        {"capacity_ample", 2, 16, 24, 4, 2, 32, 4},
        {"capacity_one_token", 1, 1, 16, 4, 2, 24, 1.25},
        {"capacity_no_tokens", 0, 8, 16, 4, 2, 24, 1.25},
        // widths that bf16 takes in blocks of 64 rows, 128 columns and 512 terms
        {"blocked_small", 2, 20, 32, 3, 2, 32, 0},
        {"blocked_tails", 2, 75, 160, 4, 2, 96, 0},
        {"blocked_one_token", 1, 1, 64, 4, 2, 32, 0},
        {"blocked_all_to_one", 2, 40, 32, 4, 2, 64, 0, true},
        {"blocked_top_1_to_one", 2, 150, 64, 5, 1, 32, 0, true},
        {"blocked_capacity", 2, 24, 64, 4, 2, 160, 1.25},
        {"blocked_many_rows", 1, 1100, 32, 2, 2, 32, 0},
        {"blocked_wide", 1, 70, 544, 2, 2, 576, 0},
        {"blocked_few_rows", 1, 280, 640, 2, 1, 608, 0},
        {"moe_micro_capacity", 8, 256, 384, 4, 2, 1024, 1.25, false, at::kFloat, Use::bench},
        {"moe_micro_capacity", 8, 256, 384, 4, 2, 1024, 1.25, false, at::kBFloat16, Use::bench},
        {"moe_micro_dropless", 8, 256, 384, 4, 2, 1024, 0, false, at::kBFloat16, Use::bench},
        {"8_experts", 1, 1024, 512, 8, 2, 512, 0, false, at::kFloat, Use::bench},
        {"64_narrow_experts", 1, 2048, 512, 64, 8, 128, 0, false, at::kFloat, Use::bench},
        {"64_wide_experts", 1, 1024, 2048, 64, 8, 1024, 0, false, at::kBFloat16, Use::bench},
    };
    add_gpu_cases(cases);
    return cases;
  }();
  return all;
}

struct MoeInput {
  at::Tensor x, weights, ids, w13, w2, dy;  // requires_grad off
  Routes routes;
};

// Random inputs at the scale of a real layer: unit activations, weights of 1/sqrt(fan-in).
inline MoeInput make_input(const MoeCase& c, at::ScalarType dtype = at::kFloat, uint64_t seed = 7) {
  at::manual_seed(seed);
  MoeInput in;
  in.x = at::randn({c.tokens(), c.D}, c.device).to(dtype);
  in.w13 = (at::randn({c.E, 2 * c.F, c.D}, c.device) / std::sqrt(static_cast<double>(c.D))).to(dtype);
  in.w2 = (at::randn({c.E, c.D, c.F}, c.device) / std::sqrt(static_cast<double>(c.F))).to(dtype);
  in.dy = at::randn({c.tokens(), c.D}, c.device).to(dtype);
  at::Tensor scores = scores_of(c.load, c.tokens(), c.E, c.device);
  if (c.one_expert && c.tokens() > 0) scores.select(1, 0).fill_(2);
  const auto [top, ids] = scores.topk(c.K, 1);
  in.weights = at::rand({c.tokens(), c.K}, c.device) + 0.1;
  in.ids = ids.to(at::kInt).contiguous();
  in.routes = make_routes(in.ids, c.S, c.E, c.capacity_factor);
  return in;
}

// Two products, W13 x and W2 a, over all rows, including a capacity buffer's empty ones. Reads x, W13, W2,
// rows and weights; writes y and the pre-activation.
inline Work forward_work(const MoeCase& c) {
  const double R = static_cast<double>(c.rows()), T = static_cast<double>(c.tokens());
  const double weights = 3.0 * c.E * c.F * c.D;
  return {.bytes = (2 * T * c.D + weights + 2 * R * c.F) * element_bytes(c.dtype) + 8 * T * c.K,
          .flops = 2 * R * 3.0 * c.F * c.D,
          .products = c.dtype};
}

// Twice the products: towards the inputs and towards the weights. Reads dy, x, W13, W2, the pre-activation,
// rows and weights; writes dx and the gradients of the weights, including the router's.
inline Work backward_work(const MoeCase& c) {
  const double R = static_cast<double>(c.rows()), T = static_cast<double>(c.tokens());
  const double weights = 3.0 * c.E * c.F * c.D;
  return {.bytes = (3 * T * c.D + 2 * weights + 2 * R * c.F) * element_bytes(c.dtype) + 12 * T * c.K,
          .flops = 2 * 2 * R * 3.0 * c.F * c.D,
          .products = c.dtype};
}

}  // namespace moelab::test
