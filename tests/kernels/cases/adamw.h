#pragma once
#include <ATen/ATen.h>

#include <cmath>

#include "tests/kernels/cases/case.h"

namespace moelab::test {

struct AdamWCase {
  const char* name;
  int64_t elements;
  at::ScalarType dtype;  // of the gradient
  Use use = Use::test;
  c10::Device device = c10::kCPU;
};

inline std::vector<AdamWCase> adamw_cases() {
  std::vector<AdamWCase> cases;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    cases.push_back({"one", 1, dtype});
    cases.push_back({"below_a_vector", 15, dtype});
    cases.push_back({"a_vector", 16, dtype});
    cases.push_back({"above_a_vector", 17, dtype});
    cases.push_back({"odd_size", 1003, dtype});
    cases.push_back({"small", 70001, dtype, Use::both});
    cases.push_back({"moe_micro_experts", 4 * 3 * 1024 * 384, dtype, Use::bench});
    cases.push_back({"64_of_1024", 64 * 3 * 1024 * 2048, dtype, Use::gpu});
  }
  cases.push_back({"odd_size", 1003, at::kHalf});
  return cases;
}

struct AdamWState {
  at::Tensor master, m, v, copy;
};

// At the start of training: moments are zero, the copy is the master in bf16.
inline AdamWState make_state(int64_t elements) {
  at::manual_seed(elements);
  const at::Tensor master = at::randn({elements});
  return {master, at::zeros({elements}), at::zeros({elements}), master.to(at::kBFloat16)};
}

inline at::Tensor make_gradient(int64_t elements, int64_t step, at::ScalarType dtype) {
  at::manual_seed(1000 + step);
  return (at::randn({elements}) * std::pow(10.0, step % 5 - 3)).to(dtype);
}

// Master and moments read and written, the gradient read, the bf16 copy written.
inline Work forward_work(const AdamWCase& c) {
  return {.bytes = static_cast<double>(c.elements) * (3 * 8 + element_bytes(c.dtype) + 2)};
}

}  // namespace moelab::test
