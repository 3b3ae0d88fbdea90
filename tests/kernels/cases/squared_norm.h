#pragma once
#include <ATen/ATen.h>

#include "tests/kernels/cases/case.h"

namespace moelab::test {

struct SquaredNormCase {
  const char* name;
  int64_t elements;
  at::ScalarType dtype;
  Use use = Use::test;
  c10::Device device = c10::kCPU;
};

inline std::vector<SquaredNormCase> squared_norm_cases() {
  std::vector<SquaredNormCase> cases = {{"odd_size", 70001, at::kHalf}};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    cases.push_back({"empty", 0, dtype});
    cases.push_back({"one", 1, dtype});
    cases.push_back({"below_a_vector", 15, dtype});
    cases.push_back({"a_vector", 16, dtype});
    cases.push_back({"above_a_vector", 17, dtype});
    cases.push_back({"below_a_block", 65535, dtype});
    cases.push_back({"a_block", 65536, dtype});
    cases.push_back({"above_a_block", 65537, dtype});
    cases.push_back({"small", 300007, dtype, Use::both});
    cases.push_back({"moe_micro_experts", 4 * 3 * 1024 * 384, dtype, Use::both});
    cases.push_back({"64_of_1024", 64 * 3 * 1024 * 2048, dtype, Use::gpu});
  }
  return cases;
}

inline at::Tensor make_input(const SquaredNormCase& c) {
  at::manual_seed(1);
  return at::randn({c.elements}, c.device).to(c.dtype);
}

inline Work forward_work(const SquaredNormCase& c) {
  return {.bytes = static_cast<double>(c.elements) * element_bytes(c.dtype)};
}

}  // namespace moelab::test
