#pragma once
#include <ATen/ATen.h>

#include <cmath>

#include "tests/kernels/cases/case.h"

namespace moelab::test {

struct LinearCrossEntropyCase {
  const char* name = "";
  int64_t T, D, V;
  at::ScalarType dtype = at::kFloat;
  double logit_rms = 1;
  double ignored = 0;  // share of ignored targets
  Use use = Use::test;
  c10::Device device = c10::kCPU;
};

inline std::vector<LinearCrossEntropyCase> linear_cross_entropy_cases() {
  std::vector<LinearCrossEntropyCase> cases = {
      {.name = "one_id", .T = 300, .D = 16, .V = 1},
      {.name = "odd_sizes", .T = 37, .D = 33, .V = 1237, .dtype = at::kHalf}};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto add = [&](LinearCrossEntropyCase c) {
      c.dtype = dtype;
      cases.push_back(c);
    };
    add({.name = "small", .T = 64, .D = 48, .V = 256, .use = Use::both});
    add({.name = "one_token", .T = 1, .D = 64, .V = 1000});
    add({.name = "odd_sizes", .T = 37, .D = 33, .V = 1237});
    add({.name = "ignored", .T = 131, .D = 64, .V = 513, .ignored = 0.4});
    add({.name = "several_chunks", .T = 395, .D = 40, .V = 50021, .ignored = 0.1});
    add({.name = "large_logits", .T = 50, .D = 64, .V = 700, .logit_rms = 80});
    add({.name = "moe_micro", .T = 2048, .D = 384, .V = 256, .use = Use::both});
    add({.name = "moe_nano", .T = 1024, .D = 512, .V = 50304, .use = Use::bench});
    add({.name = "32k_tokens", .T = 32768, .D = 2048, .V = 50304, .use = Use::gpu});
  }
  return cases;
}

struct LinearCrossEntropyInput {
  at::Tensor x, weight, targets;
};

inline LinearCrossEntropyInput make_input(const LinearCrossEntropyCase& c) {
  at::manual_seed(c.T * 31 + c.V);
  const at::Tensor x = at::randn({c.T, c.D}, c.device) * c.logit_rms;
  const at::Tensor weight = at::randn({c.V, c.D}, c.device) / std::sqrt(static_cast<double>(c.D));
  const at::Tensor targets = at::randint(c.V, {c.T}, at::TensorOptions(c.device).dtype(at::kLong));
  if (c.ignored > 0) targets.masked_fill_(at::rand({c.T}, c.device).lt(c.ignored), -1);
  return {x.to(c.dtype), weight.to(c.dtype), targets};
}

// Terms of all sums, as test::tolerance counts them: a GPU's library splits such sums differently for every
// shape. An error in a logit, which is a sum of D terms of that size, is an error of an exponent.
inline int64_t summed_terms(const LinearCrossEntropyCase& c) {
  return c.T + c.V + static_cast<int64_t>(static_cast<double>(c.D) * c.logit_rms * c.logit_rms);
}

// Forward computes both gradients: three products of the logits' size. Reads x, weight and targets; writes dx
// and the sum of dW in fp32.
inline Work forward_work(const LinearCrossEntropyCase& c) {
  const double x = static_cast<double>(c.T * c.D), w = static_cast<double>(c.V * c.D);
  return {.bytes = (2 * x + w) * element_bytes(c.dtype) + 4 * w + 8.0 * c.T,
          .flops = 3 * 2 * x * c.V,
          .products = c.dtype};
}

// Backward only scales: dx in place, dW from fp32 to the weight's type.
inline Work backward_work(const LinearCrossEntropyCase& c) {
  const double x = static_cast<double>(c.T * c.D), w = static_cast<double>(c.V * c.D);
  return {.bytes = (2 * x + w) * element_bytes(c.dtype) + 4 * w};
}

}  // namespace moelab::test
