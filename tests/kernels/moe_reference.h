#pragma once
#include <ATen/ATen.h>

#include <vector>

#include "kernels/dispatch.h"

// The MoE layer in float64 with plain ATen and autograd, one route at a time: what the operators are compared
// with.
namespace moelab::test {

struct MoeCase {
  const char* name;
  int64_t B, S, D, E, K, F;
  double capacity_factor;   // 0: dropless
  bool one_expert = false;  // every token takes expert 0 first
  int64_t tokens() const { return B * S; }
};

inline const std::vector<MoeCase>& moe_cases() {
  static const std::vector<MoeCase> cases = {
      {"dropless", 2, 24, 32, 4, 2, 48, 0},
      {"odd_sizes", 3, 7, 19, 5, 3, 13, 0},
      {"one_token", 1, 1, 16, 4, 2, 24, 0},
      {"no_tokens", 0, 8, 16, 4, 2, 24, 0},
      {"top_1", 2, 16, 32, 4, 1, 40, 0},
      {"all_experts", 2, 9, 16, 3, 3, 20, 0},
      {"empty_experts", 1, 3, 16, 16, 2, 24, 0},
      {"all_to_one", 2, 16, 32, 4, 2, 24, 0, true},
      {"capacity", 2, 24, 32, 4, 2, 48, 1.25},
      {"capacity_drops", 2, 24, 32, 4, 2, 48, 0.5, true},
      {"capacity_ample", 2, 16, 24, 4, 2, 32, 4},
      {"capacity_one_token", 1, 1, 16, 4, 2, 24, 1.25},
      {"capacity_no_tokens", 0, 8, 16, 4, 2, 24, 1.25},
  };
  return cases;
}

struct MoeInput {
  at::Tensor x, weights, ids, w13, w2, dy;  // fp32, requires_grad off
  Routes routes;
};

// Random inputs at the scale of a real layer: unit activations, weights of 1/sqrt(fan-in).
inline MoeInput make_input(const MoeCase& c, at::ScalarType dtype = at::kFloat, uint64_t seed = 7) {
  at::manual_seed(seed);
  MoeInput in;
  in.x = at::randn({c.tokens(), c.D}).to(dtype);
  in.w13 = (at::randn({c.E, 2 * c.F, c.D}) / std::sqrt(static_cast<double>(c.D))).to(dtype);
  in.w2 = (at::randn({c.E, c.D, c.F}) / std::sqrt(static_cast<double>(c.F))).to(dtype);
  in.dy = at::randn({c.tokens(), c.D}).to(dtype);
  at::Tensor scores = at::rand({c.tokens(), c.E});
  if (c.one_expert && c.tokens() > 0) scores.select(1, 0).fill_(2);
  const auto [top, ids] = scores.topk(c.K, 1);
  in.weights = at::rand({c.tokens(), c.K}) + 0.1;
  in.ids = ids.to(at::kInt).contiguous();
  in.routes = c.capacity_factor > 0
                  ? capacity_routes(in.ids, c.E, c.S, expert_capacity(c.S, c.K, c.E, c.capacity_factor))
                  : dropless_routes(in.ids, c.E);
  return in;
}

// sum over the routes that have a row of weight * W2 (silu(gate) * up); float64 arguments.
inline at::Tensor reference_experts(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& ids,
                                    const at::Tensor& row, const at::Tensor& w13, const at::Tensor& w2) {
  const int64_t F = w2.size(2);
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < x.size(0); ++t) {
    at::Tensor y = at::zeros({x.size(1)}, x.options());
    for (int64_t k = 0; k < ids.size(1); ++k) {
      if (row[t][k].item<int>() < 0) continue;
      const int64_t e = ids[t][k].item<int>();
      const at::Tensor h = at::mv(w13[e], x[t]);
      const at::Tensor a = at::silu(h.narrow(0, 0, F)) * h.narrow(0, F, F);
      y = y + weights[t][k] * at::mv(w2[e], a);
    }
    rows.push_back(y);
  }
  return rows.empty() ? 0 * x + 0 * (w13.sum() + w2.sum() + weights.sum()) : at::stack(rows);
}

}  // namespace moelab::test
