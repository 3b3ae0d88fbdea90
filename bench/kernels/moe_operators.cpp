#include "bench/kernels/operation.h"
#include "kernels/moe/expert_block.h"
#include "tests/kernels/cases/dispatch.h"
#include "tests/kernels/cases/expert_block.h"
#include "tests/kernels/cases/router.h"
#ifdef MOELAB_WITH_CUDA
#include <c10/cuda/CUDAStream.h>

#include "bench/kernels/sorted_routes.h"
#endif

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

#ifdef MOELAB_WITH_CUDA
// The same rows by the library's sort. If they differ from ours, it throws instead of being timed.
Operation sorted_dispatch_operation(const test::DispatchCase& c) {
  const Tensor ids = test::make_input(c);
  const auto bytes = static_cast<int64_t>(sorted_routes_scratch(ids.numel(), c.E));
  const auto sorted = [=] {
    const Tensor scratch = at::empty({bytes}, ids.options().dtype(at::kByte));
    const Tensor row = at::empty_like(ids), offsets = at::empty({c.E + 1}, ids.options());
    sorted_routes(ids.const_data_ptr<int32_t>(), ids.numel(), c.E, scratch.mutable_data_ptr(),
                  row.mutable_data_ptr<int32_t>(), offsets.mutable_data_ptr<int32_t>(),
                  c10::cuda::getCurrentCUDAStream());
    return std::pair{row, offsets};
  };
  const auto [row, offsets] = sorted();
  const Routes ours = dropless_routes(ids, c.E);
  TORCH_CHECK(at::equal(row, ours.row_TK) && at::equal(offsets, ours.offsets_E1), c.name,
              ": the library's sort places routes elsewhere");
  return {.forward = [=] {
    sorted();
    return Tensors{};
  }};
}

void add_sorted_dispatch(c10::Device device) {
  std::vector<test::DispatchCase> cases = test::dispatch_cases();
  std::erase_if(cases, [](const test::DispatchCase& c) { return c.capacity_factor > 0; });
  add_operator("dispatch_by_sort", cases, device, sorted_dispatch_operation);
}
#endif

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
#ifdef MOELAB_WITH_CUDA
  if (device.is_cuda()) add_sorted_dispatch(device);
#endif
  add_operator("expert_block", test::moe_cases(), device, expert_block_operation);
}

}  // namespace moelab::bench
