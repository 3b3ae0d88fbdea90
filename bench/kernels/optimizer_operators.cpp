#include <benchmark/benchmark.h>

#include "bench/kernels/operation.h"
#include "kernels/update/adamw.h"
#include "kernels/update/squared_norm.h"
#include "tests/kernels/cases/adamw.h"
#include "tests/kernels/cases/squared_norm.h"

namespace moelab::bench {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Operation adamw_operation(const test::AdamWCase& c) {
  test::AdamWState state = test::make_state(c.elements);
  for (Tensor* t : {&state.master, &state.m, &state.v, &state.copy}) *t = t->to(c.device);
  const Tensor gradient = test::make_gradient(c.elements, 3, c.dtype).to(c.device);
  const AdamWStep numbers{.lr = 1e-4, .weight_decay = 0.1, .step = 1000};
  return {.forward = [=] {
    adamw_(state.master, gradient, state.m, state.v, state.copy, numbers);
    return Tensors{};
  }};
}

Operation squared_norm_operation(const test::SquaredNormCase& c) {
  const Tensor x = test::make_input(c);
  return {.forward = [=] {
    benchmark::DoNotOptimize(squared_norm(x));
    return Tensors{};
  }};
}

}  // namespace

void add_optimizer_operators(c10::Device device) {
  add_operator("adamw", test::adamw_cases(), device, adamw_operation);
  add_operator("squared_norm", test::squared_norm_cases(), device, squared_norm_operation);
}

}  // namespace moelab::bench
