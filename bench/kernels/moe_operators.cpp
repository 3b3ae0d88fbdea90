#include "bench/kernels/operation.h"
#include "bench/kernels/sorted_dispatch.h"
#include "kernels/moe/expert_block.h"
#include "tests/kernels/cases/dispatch.h"
#include "tests/kernels/cases/expert_block.h"
#include "tests/kernels/cases/router.h"

namespace moelab::bench {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Operation router_operation(const test::RouterCase& c) {
  auto in = test::make_input(c);
  const Tensor x = in.x.requires_grad_(), w = in.w.requires_grad_();
  const Tensor dweights = at::randn({c.B * c.S, test::columns(c)}, c.device);
  return {[=, options = in.options] {
            const RouterOutput out = route(x, w, std::nullopt, std::nullopt, options);
            return Tensors{out.weights_TK, out.balance_loss, out.z_loss};
          },
          {dweights, at::scalar_tensor(0.01, c.device), at::scalar_tensor(0.001, c.device)},
          {x, w}};
}

Operation dispatch_operation(const test::DispatchCase& c) {
  const Tensor ids = test::make_input(c);
  return {.forward = [=] {
    test::make_routes(ids, c.S, c.E, c.capacity_factor);
    return Tensors{};
  }};
}

Operation expert_block_operation(const test::MoeCase& c) {
  auto in = test::make_input(c, c.dtype);
  for (Tensor* leaf : {&in.x, &in.weights, &in.w13, &in.w2}) leaf->requires_grad_();
  return {[=] { return Tensors{expert_block(in.x, in.weights, in.routes, in.w13, in.w2)}; },
          {in.dy},
          {in.x, in.weights, in.w13, in.w2}};
}

}  // namespace

void add_moe_operators(c10::Device device) {
  add_operator("router", test::router_cases(), device, router_operation);
  add_operator("dispatch", test::dispatch_cases(), device, dispatch_operation);
  if (device.is_cuda()) add_sorted_dispatch(device);
  add_operator("expert_block", test::moe_cases(), device, expert_block_operation);
}

}  // namespace moelab::bench
