#include "kernels/moe/expert_block_cuda_meta.h"

#include <ATen/ATen.h>

#include "kernels/meta/simulated_device.h"
#include "kernels/moe/expert_block_plan.h"

// Axes: T tokens, D width, K routes a token, E experts, F expert width, R rows grouped by expert.
namespace moelab {
namespace {

using at::Tensor;
using namespace expert_block_detail;

// Products over experts allocate only their results.
struct MetaSteps : PlannedCall {
  explicit MetaSteps(const ExpertCall& call) : PlannedCall(call, meta_capability()) {}

  Tensor copied_rows(const Tensor&) const { return allocate({R, D}, x.options(), Kind::capacity_buffers); }
  Tensor combine(const Tensor& /*rows_RD*/, bool) const { return at::empty_like(x); }
  void swiglu(const Tensor&, const Tensor&) const {}
  void gated_rows(const Tensor&, const Tensor&) const {}
  void swiglu_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&) const {}

  Tensor rows_by_expert(const Rows& rows, Fp8Format format, const Tensor& matrix_EIO, Kind kind) const {
    const Tensor out = allocate({R, matrix_EIO.size(2)}, x.options(), kind);
    if (fp8 && R > 0) multiply(of_one(rows.data), format, matrix_EIO[0]);
    return out;
  }
  Tensor columns_by_expert(const Rows& a, const Rows& b) const {
    const Tensor out = allocate({E, a.data.size(1), b.data.size(1)}, x.options(), Kind::gradients);
    if (fp8 && R > 0) multiply(of_one(a.data).t(), Fp8Format::e5m2, of_one(b.data));
    return out;
  }

 private:
  // In fp8 all rows have been copied.
  Tensor of_one(const Tensor& rows_RI) const { return rows_RI.narrow(0, 0, (R + E - 1) / E); }
  void multiply(const Tensor& a, Fp8Format format, const Tensor& b) const {
    const KindScope scope(Kind::activation_experts);
    fp8_mm(a, format, b);
  }
};

}  // namespace

Outputs expert_block_forward_cuda_meta(const ExpertCall& call, bool keep) {
  return run_forward(MetaSteps(call), keep);
}

Gradients expert_block_backward_cuda_meta(const ExpertCall& call, const Tensor& kept) {
  const Tensor& dy_TD = call.x_TD;  // of its shape
  return run_backward(MetaSteps(call), dy_TD, kept);
}

}  // namespace moelab
