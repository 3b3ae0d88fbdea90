#include "kernels/moe/expert_block_cuda_meta.h"

#include <ATen/ATen.h>

#include "kernels/dense/fp8.h"
#include "kernels/memory/ledger.h"

// Axes: T tokens, D width, K routes a token, E experts, F expert width, R rows grouped by expert.
namespace moelab {
namespace {

using at::Tensor;
using namespace expert_block_detail;

Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options, Kind kind) {
  const KindScope scope(kind);
  return at::empty(sizes, options);
}

// As Call in kernels/moe/expert_block_cuda.cpp; products over experts allocate only their results.
struct Call {
  const Tensor &x, &w13;
  int64_t D, E, F, R;
  bool fp8;
  Tensor route_R;

  Call(const Tensor& x, const Tensor& row_TK, const Tensor& w13, int64_t rows, bool fp8)
      : x(x),
        w13(w13),
        D(x.size(1)),
        E(w13.size(0)),
        F(w13.size(1) / 2),
        R(rows),
        fp8(fp8),
        route_R(allocate({rows}, row_TK.options(), Kind::routing)) {}

  Tensor gather() const { return allocate({R, D}, x.options(), Kind::capacity_buffers); }
  Tensor combine(const Tensor& /*rows_RD*/) const { return at::empty_like(x); }

  Tensor rows_by_expert(const Tensor& rows_RI, Fp8Format format, const Tensor& matrix_EIO, Kind kind) const {
    const Tensor out = allocate({R, matrix_EIO.size(2)}, x.options(), kind);
    multiply(of_one(rows_RI), format, matrix_EIO[0]);
    return out;
  }
  Tensor columns_by_expert(const Tensor& a_RA, const Tensor& b_RB) const {
    const Tensor out = allocate({E, a_RA.size(1), b_RB.size(1)}, x.options(), Kind::gradients);
    multiply(of_one(a_RA).t(), Fp8Format::e5m2, of_one(b_RB));
    return out;
  }
  Tensor pre_activation() const {
    return rows_by_expert(gather(), Fp8Format::e4m3, w13.transpose(1, 2), Kind::activation_experts);
  }

 private:
  Tensor of_one(const Tensor& rows_RI) const { return rows_RI.narrow(0, 0, (R + E - 1) / E); }
  void multiply(const Tensor& a, Fp8Format format, const Tensor& b) const {
    const KindScope scope(Kind::activation_experts);
    if (fp8 && R > 0) fp8_mm(a, format, b);
  }
};

}  // namespace

Outputs expert_block_forward_cuda_meta(const ExpertCall& call, bool keep) {
  const Tensor &x = call.x_TD, &w2 = call.w2_EDF;
  const Call c(x, call.row_TK, call.w13_E2FD, call.rows, call.fp8);
  const Tensor h = c.pre_activation(), act = allocate({c.R, c.F}, x.options(), Kind::activation_experts);
  const Tensor y =
      c.combine(c.rows_by_expert(act, Fp8Format::e4m3, w2.transpose(1, 2), Kind::capacity_buffers));
  return {y, keep ? h : at::empty({0}, x.options())};
}

Gradients expert_block_backward_cuda_meta(const ExpertCall& call, const Tensor& kept) {
  const Tensor &weights = call.weights_TK, &w2 = call.w2_EDF;
  const Call c(call.x_TD, call.row_TK, call.w13_E2FD, call.rows, call.fp8);
  const Tensor h = kept.dim() == 2 ? kept : c.pre_activation();
  const Tensor dscale_R = allocate({c.R}, weights.options(), Kind::routing),
               dweights = at::empty_like(weights);
  Tensor dy_RD = c.gather();
  Tensor act = c.rows_by_expert(dy_RD, Fp8Format::e5m2, w2, Kind::activation_experts);
  const Tensor dw2 = c.columns_by_expert(dy_RD, act);
  dy_RD.reset();
  act.reset();
  const Tensor dw13 = c.columns_by_expert(h, c.gather());
  const Tensor dx = c.combine(c.rows_by_expert(h, Fp8Format::e5m2, c.w13, Kind::capacity_buffers));
  return {dx, dweights, dw13, dw2};
}

}  // namespace moelab
