#pragma once
#include <ATen/ATen.h>

#include "kernels/moe/dispatch.h"
#include "tests/kernels/cases/case.h"

namespace moelab::test {

// How tokens spread over experts: evenly; by Zipf's law, where the n-th likeliest expert has weight 1 /
// n^1.2; or with nine tenths of the weight on four experts.
enum class Load { even, zipf, four_hot };

// Scores (T, E) whose K highest belong to K different experts, drawn with those weights (Gumbel's trick).
inline at::Tensor scores_of(Load load, int64_t T, int64_t E, c10::Device device) {
  const at::Tensor noise = at::rand({T, E}, device);
  if (load == Load::even) return noise;
  const at::Tensor place = at::arange(1, E + 1, noise.options());
  const at::Tensor weight = load == Load::zipf
                                ? place.pow(-1.2)
                                : at::where(place.le(4), 0.9 / 4, 0.1 / static_cast<double>(E - 4));
  return weight.log() - noise.log().neg().log();
}

struct DispatchCase {
  const char* name;
  int64_t B, S, E, K;
  double capacity_factor;  // 0: dropless
  Use use = Use::test;
  at::ScalarType dtype = at::kInt;
  c10::Device device = c10::kCPU;
  Load load = Load::even;
};

inline std::vector<DispatchCase> dispatch_cases() {
  return {
      {"small_dropless", 3, 32, 6, 3, 0, Use::both},
      {"small_capacity", 3, 32, 6, 3, 0.75, Use::both},
      {"ample", 3, 32, 6, 3, 6},
      {"one_token", 1, 1, 4, 2, 1.25},
      {"all_experts", 2, 9, 3, 3, 0},
      {"moe_micro_dropless", 8, 256, 4, 2, 0, Use::both},
      {"moe_micro_capacity", 8, 256, 4, 2, 1.25, Use::both},
      {"many_experts_dropless", 2, 1024, 64, 8, 0, Use::both},
      {"many_experts_capacity", 2, 1024, 64, 8, 1.25, Use::both},
      {"64_experts", 8, 4096, 64, 8, 0, Use::gpu},
      {"64_experts_capacity", 8, 4096, 64, 8, 1.25, Use::gpu},
      {"128_experts", 8, 4096, 128, 8, 0, Use::gpu},
      {"128_experts_zipf", 8, 4096, 128, 8, 0, Use::gpu, at::kInt, c10::kCPU, Load::zipf},
  };
}

// Expert ids (T, K) int32, different for each token.
inline at::Tensor make_input(const DispatchCase& c) {
  at::manual_seed(1);
  return std::get<1>(scores_of(c.load, c.B * c.S, c.E, c.device).topk(c.K, 1)).to(at::kInt).contiguous();
}

// `capacity_factor` 0: dropless.
inline Routes make_routes(const at::Tensor& ids, int64_t S, int64_t E, double capacity_factor) {
  if (capacity_factor == 0) return dropless_routes(ids, E);
  return capacity_routes(ids, E, S, expert_capacity(S, ids.size(1), E, capacity_factor));
}

// Reads an id and writes a row for each route.
inline Work forward_work(const DispatchCase& c) { return {.bytes = 8.0 * c.B * c.S * c.K}; }

}  // namespace moelab::test
