#pragma once
#include <ATen/ATen.h>

#include "kernels/dispatch.h"
#include "tests/kernels/cases/case.h"

namespace moelab::test {

struct DispatchCase {
  const char* name;
  int64_t B, S, E, K;
  double capacity_factor;  // 0: dropless
  Use use = Use::test;
  at::ScalarType dtype = at::kInt;
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
  };
}

// Different experts for each token, int32 (T, K).
inline at::Tensor make_input(const DispatchCase& c) {
  at::manual_seed(1);
  return std::get<1>(at::rand({c.B * c.S, c.E}).topk(c.K, 1)).to(at::kInt).contiguous();
}

// `capacity_factor` 0: dropless.
inline Routes make_routes(const at::Tensor& ids, int64_t S, int64_t E, double capacity_factor) {
  if (capacity_factor == 0) return dropless_routes(ids, E);
  return capacity_routes(ids, E, S, expert_capacity(S, ids.size(1), E, capacity_factor));
}

// An id read and a row written for each route.
inline Work forward_work(const DispatchCase& c) { return {.bytes = 8.0 * c.B * c.S * c.K}; }

}  // namespace moelab::test
