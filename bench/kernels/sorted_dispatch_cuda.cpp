#include "bench/kernels/sorted_dispatch.h"

#include <c10/cuda/CUDAStream.h>

#include "bench/kernels/operation.h"
#include "bench/kernels/sorted_routes.h"
#include "tests/kernels/cases/dispatch.h"

namespace moelab::bench {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

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

}  // namespace

void add_sorted_dispatch(c10::Device gpu) {
  std::vector<test::DispatchCase> cases = test::dispatch_cases();
  std::erase_if(cases, [](const test::DispatchCase& c) { return c.capacity_factor > 0; });
  add_operator("dispatch_by_sort", cases, gpu, sorted_dispatch_operation);
}

}  // namespace moelab::bench
