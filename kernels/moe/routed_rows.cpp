#include "kernels/moe/routed_rows.h"

#include "kernels/moe/expert_rows_cpu.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>

#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/moe/routed_rows_parts.h"
#include "kernels/operator/op_handle.h"

// Axes: T tokens, K routes a token, R rows, W a width.
namespace moelab {
namespace {

using at::Tensor;
using namespace expert_block_detail;
using namespace routed_rows_detail;

Tensor gather_cpu(const Tensor& source, const Tensor& row, int64_t rows) {
  const Gathered gathered(source, row, rows);
  invert_routes(row, gathered.route_R);
  gather_rows(source, gathered.route_R.const_data_ptr<int32_t>(), rows, row.size(1), gathered.rows_RW);
  return gathered.rows_RW;
}

Tensor gather_meta(const Tensor& source, const Tensor& row, int64_t rows) {
  return Gathered(source, row, rows).rows_RW;
}

// Of the CPU. sum_TW: the result itself when that is fp32.
struct CombineScratch {
  Tensor sum_TW, route_R, scale_R;

  CombineScratch(const Tensor& rows, const Tensor& row, bool weighted, const Tensor& y)
      : sum_TW(y.scalar_type() == at::kFloat ? y : at::empty_like(y, y.options().dtype(at::kFloat))) {
    const KindScope kind(Kind::routing);
    route_R = at::empty({rows.size(0)}, row.options());
    if (weighted) scale_R = at::empty({rows.size(0)}, y.options().dtype(at::kFloat));
  }
};

void combine_cpu(const Tensor& rows, const Tensor& row, const Tensor& offsets,
                 const std::optional<Tensor>& weights, const Tensor& y) {
  check_combine(rows, row, weights, y);
  const CombineScratch scratch(rows, row, weights.has_value(), y);
  invert_routes(row, scratch.route_R);
  scratch.sum_TW.zero_();
  const int32_t *route = scratch.route_R.const_data_ptr<int32_t>(),
                *start = offsets.const_data_ptr<int32_t>();
  float* const scale = weights ? scratch.scale_R.mutable_data_ptr<float>() : nullptr;
  if (weights) gather_scales(weights->const_data_ptr<float>(), route, rows.size(0), scale);
  for (const int64_t e : widest_first(start, offsets.numel() - 1)) {
    const int64_t first = start[e], n = start[e + 1] - first;
    scatter_add(rows.narrow(0, first, n), route + first, scale ? scale + first : nullptr, row.size(1),
                scratch.sum_TW);
  }
  if (!scratch.sum_TW.is_same(y)) y.copy_(scratch.sum_TW);
}

void combine_meta(const Tensor& rows, const Tensor& row, const Tensor&, const std::optional<Tensor>& weights,
                  const Tensor& y) {
  check_combine(rows, row, weights, y);
  if (!meta_is_cuda()) CombineScratch(rows, row, weights.has_value(), y);
}

Tensor gather(const Tensor& source, const Tensor& row, int64_t rows) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return operator_handle<decltype(gather_cpu)>("moelab::gather_routed").call(source, row, rows);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def("gather_routed(Tensor source, Tensor row, int rows) -> Tensor");
  m.def("combine_routed(Tensor rows, Tensor row, Tensor offsets, Tensor? weights, Tensor(a!) y) -> ()");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("gather_routed", gather_cpu);
  m.impl("combine_routed", combine_cpu);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("gather_routed", gather_meta);
  m.impl("combine_routed", combine_meta);
}

Tensor gather_routed(const Tensor& source_TW, const Routes& routes) {
  return gather(source_TW, routes.row_TK, routes.rows);
}

Tensor gather_routed_weights(const Tensor& weights_TK, const Routes& routes) {
  return gather(weights_TK.view({-1, 1}), routes.row_TK.view({-1, 1}), routes.rows).view(-1);
}

Tensor values_of_routes(const Tensor& values_R, const Routes& routes) {
  const Tensor& row = routes.row_TK;
  return values_R.index_select(0, row.clamp_min(0).view(-1)).view(row.sizes()).masked_fill_(row.lt(0), 0);
}

void combine_routed(const Tensor& rows_RW, const Tensor& weights_TK, const Routes& routes,
                    const Tensor& y_TW) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto weights = weights_TK.defined() ? std::optional(weights_TK) : std::nullopt;
  operator_handle<decltype(combine_cpu)>("moelab::combine_routed")
      .call(rows_RW, routes.row_TK, routes.offsets_E1, weights, y_TW);
}

}  // namespace moelab
