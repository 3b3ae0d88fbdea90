#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

// The Meta side of the expert block where meta stands for CUDA (kernels/meta/stands_for.h): what the
// functions of kernels/expert_block_cuda.h allocate, in their order and for as long. In fp8, whose
// temporaries are one expert's at a time, experts are taken to have as many rows.
namespace moelab {

std::tuple<at::Tensor, at::Tensor> expert_block_forward_cuda_meta(const at::Tensor& x_TD,
                                                                  const at::Tensor& row_TK,
                                                                  const at::Tensor& w13_E2FD,
                                                                  const at::Tensor& w2_EDF, int64_t rows,
                                                                  bool keep, bool fp8);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> expert_block_backward_cuda_meta(
    const at::Tensor& x_TD, const at::Tensor& weights_TK, const at::Tensor& row_TK,
    const at::Tensor& w13_E2FD, const at::Tensor& w2_EDF, const at::Tensor& h_R2F, int64_t rows, bool fp8);

}  // namespace moelab
