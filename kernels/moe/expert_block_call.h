#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

// Arguments and results of the operators of kernels/moe/expert_block.h, on every device.
namespace moelab::expert_block_detail {

struct ExpertCall {
  const at::Tensor& x_TD;
  const at::Tensor& weights_TK;
  const at::Tensor& row_TK;      // int32: the row of each route; -1: none
  const at::Tensor& offsets_E1;  // int32, where each expert's rows begin
  const at::Tensor& w13_E2FD;
  const at::Tensor& w2_EDF;
  int64_t rows;    // R, of all experts together
  int64_t widest;  // upper bound on the rows of one expert
  bool fp8;
  bool wide = false;  // y and dx in fp32, as they were summed (CPU)

  c10::ScalarType result_type() const { return wide ? c10::kFloat : x_TD.scalar_type(); }
};

// y_TD, H_R2F (empty unless kept for backward)
using Outputs = std::tuple<at::Tensor, at::Tensor>;
// dx_TD, dweights_TK, dw13_E2FD, dw2_EDF
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// The operators, on the device of their tensors and below autograd. Without `keep` the pre-activation is not
// returned. Backward overwrites h_R2F with its gradient, or recomputes it if it is empty; dy_TD is
// contiguous.
Outputs expert_block_forward(const ExpertCall& call, bool keep);
Gradients expert_block_backward(const ExpertCall& call, const at::Tensor& dy_TD, const at::Tensor& h_R2F);

// The operators as the dispatcher calls them; `side` is a device's implementation.
template <Outputs (*side)(const ExpertCall&, bool)>
Outputs forward_operator(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& row_TK,
                         const at::Tensor& offsets, const at::Tensor& w13, const at::Tensor& w2, int64_t rows,
                         int64_t widest, bool keep, bool fp8, bool wide) {
  return side({x, weights, row_TK, offsets, w13, w2, rows, widest, fp8, wide}, keep);
}

template <Gradients (*side)(const ExpertCall&, const at::Tensor&, const at::Tensor&)>
Gradients backward_operator(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weights,
                            const at::Tensor& row_TK, const at::Tensor& offsets, const at::Tensor& w13,
                            const at::Tensor& w2, const at::Tensor& h, int64_t rows, int64_t widest, bool fp8,
                            bool wide) {
  return side({x, weights, row_TK, offsets, w13, w2, rows, widest, fp8, wide}, dy, h);
}

}  // namespace moelab::expert_block_detail
