#pragma once
#ifdef MOELAB_WITH_CUDA
#include <ATen/core/Tensor.h>

#include <tuple>

#include "kernels/expert_block_call.h"

// The CUDA side of the operators of kernels/expert_block.h. Where all experts have as
// many rows (by capacity, unless it is of all tokens and each is sent to all experts) nothing waits for the
// device. Elsewhere products over experts are LibTorch's grouped ones in bf16 on Hopper where D and F are
// multiples of 8 and experts fewer than 1024, and wait for nothing; otherwise, and in fp8, a product an
// expert, for which the host waits for the offsets once.
namespace moelab {

// Whether products over E experts of width D and hidden width F are LibTorch's grouped ones: bf16 on Hopper,
// where they wait for nothing, with rows of whole 16 bytes and fewer than 1024 experts.
bool has_grouped_products(c10::Device device, at::ScalarType type, int64_t E, int64_t D, int64_t F);

expert_block_detail::Outputs expert_block_forward_cuda(const expert_block_detail::ExpertCall& call,
                                                       bool keep);
expert_block_detail::Gradients expert_block_backward_cuda(const expert_block_detail::ExpertCall& call,
                                                          const at::Tensor& dy_TD, const at::Tensor& h_R2F);

std::tuple<at::Tensor, at::Tensor> dense_block_forward_cuda(const at::Tensor& x_TD, const at::Tensor& w13_2FD,
                                                            const at::Tensor& w2_DF, bool fp8);
std::tuple<at::Tensor, at::Tensor, at::Tensor> dense_block_backward_cuda(const at::Tensor& dy_TD,
                                                                         const at::Tensor& x_TD,
                                                                         const at::Tensor& w13_2FD,
                                                                         const at::Tensor& w2_DF,
                                                                         const at::Tensor& h_T2F, bool fp8);

}  // namespace moelab
#endif
