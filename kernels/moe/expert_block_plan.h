#pragma once
#include <ATen/ATen.h>

#include "kernels/dense/fp8.h"
#include "kernels/memory/ledger.h"
#include "kernels/moe/expert_block_call.h"
#include "kernels/moe/grouped_products.h"

// The expert block on CUDA: its steps in order, and what they allocate for how long. CUDA runs them; Meta,
// while it stands for CUDA (kernels/meta/simulated_device.h), only allocates. Axes: T tokens, D width, K
// routes a token, E experts, F expert width, R rows grouped by expert.
namespace moelab::expert_block_detail {

// Rows grouped by expert, (R, columns): `data`, or if `by_token` the line of `data`, (T, columns), of each
// row's token.
struct Rows {
  at::Tensor data;
  bool by_token = false;
};

// What all steps of one call share.
struct PlannedCall {
  const at::Tensor &x, &weights, &row_TK, &offsets, &w13, &w2;
  int64_t T, D, K, E, F, R;
  bool fp8;
  bool even;  // all experts have equally many rows
  ExpertProducts products;
  at::Tensor route_R;

  // `capability`: the GPU's.
  PlannedCall(const ExpertCall& call, int capability)
      : x(call.x_TD),
        weights(call.weights_TK),
        row_TK(call.row_TK),
        offsets(call.offsets_E1),
        w13(call.w13_E2FD),
        w2(call.w2_EDF),
        T(x.size(0)),
        D(x.size(1)),
        K(weights.size(1)),
        E(w13.size(0)),
        F(w2.size(2)),
        R(call.rows),
        fp8(call.fp8),
        // by capacity; ragged groups may also have T rows, and R = E * T if every token goes to every expert
        even(E * call.widest == R && (call.widest < T || K < E)),
        products(even || fp8 || R == 0 ? ExpertProducts::each
                                       : expert_products(capability, x.scalar_type(), E, D, F)),
        route_R(allocate({R}, row_TK.options(), Kind::routing)) {}

  static at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options, Kind kind) {
    const KindScope scope(kind);
    return at::empty(sizes, options);
  }
};

// The steps of one call, Steps below, are a PlannedCall with these functions:
//   copied_rows(from_TD): the token of each row, (R, D)
//   rows_by_expert(rows of I columns, format, matrix_EIO, kind): each expert's rows times its matrix, (R, O),
//     booked to `kind`. `format`: the rows', in fp8.
//   columns_by_expert(rows of A columns, rows of B columns): for each expert the transpose of its rows of a,
//     which are gradients, times its rows of b, (E, A, B); zeros for an expert without rows
//   swiglu(h_R2F, act_RF)
//   gated_rows(h_R2F, act_RF): the up-projection of x and SwiGLU at once, if products are `hopper`; h may
//     be undefined
//   swiglu_backward(h_R2F, act_RF, dscale_R, dweights_TK): act is dA' and becomes the scaled activation; h
//     becomes its gradient
//   combine(rows_RD, weighted): the sum of each token's rows, (T, D)
template <class Steps>
Rows gather(const Steps& s, const at::Tensor& from_TD) {
  if (takes_rows_where_they_lie(s.products)) return {from_TD, true};
  return {s.copied_rows(from_TD)};
}

template <class Steps>
at::Tensor pre_activation(const Steps& s) {
  return s.rows_by_expert(gather(s, s.x), Fp8Format::e4m3, s.w13.transpose(1, 2), Kind::activation_experts);
}

template <class Steps>
Outputs run_forward(const Steps& s, bool keep) {
  const auto of_experts = [&](int64_t columns) {
    return s.allocate({s.R, columns}, s.x.options(), Kind::activation_experts);
  };
  const bool fused = s.products == ExpertProducts::hopper;
  const at::Tensor h = !fused ? pre_activation(s)
                       : keep ? of_experts(2 * s.F)
                              : at::Tensor(),
                   act = of_experts(s.F);
  fused ? s.gated_rows(h, act) : s.swiglu(h, act);
  const at::Tensor y =
      s.combine(s.rows_by_expert({act}, Fp8Format::e4m3, s.w2.transpose(1, 2), Kind::capacity_buffers), true);
  return {y, keep ? h : at::empty({0}, s.x.options())};
}

// `kept`: H, or empty: recomputed.
template <class Steps>
Gradients run_backward(const Steps& s, const at::Tensor& dy, const at::Tensor& kept) {
  const at::Tensor h = kept.dim() == 2 ? kept : pre_activation(s);
  const at::Tensor dscale_R = s.allocate({s.R}, s.weights.options(), Kind::routing),
                   dweights = at::empty_like(s.weights);
  Rows dy_rows = gather(s, dy);
  at::Tensor act = s.rows_by_expert(dy_rows, Fp8Format::e5m2, s.w2, Kind::activation_experts);
  s.swiglu_backward(h, act, dscale_R, dweights);
  const at::Tensor dw2 = s.columns_by_expert(dy_rows, {act});
  dy_rows.data.reset();
  act.reset();
  const at::Tensor dw13 = s.columns_by_expert({h}, gather(s, s.x));
  const at::Tensor dx =
      s.combine(s.rows_by_expert({h}, Fp8Format::e5m2, s.w13, Kind::capacity_buffers), false);
  return {dx, dweights, dw13, dw2};
}

}  // namespace moelab::expert_block_detail
