#pragma once
#ifdef MOELAB_WITH_CUDA
#include <ATen/core/Tensor.h>

#include <tuple>

#include "kernels/moe/expert_block_call.h"

// The CUDA side of the operators of kernels/moe/expert_block.h. If all experts have equally many rows (by
// capacity, unless the capacity is all tokens and each goes to all experts), the host does not wait for the
// device. Otherwise, in bf16 on Hopper with D and F multiples of 8 and fewer than 1024 experts, products over
// experts are LibTorch's grouped ones, which do not wait either. In all other cases, and in fp8, there is one
// product per expert, and the host waits once, for the offsets.
namespace moelab {

// Whether products over E experts of width D and hidden width F are LibTorch's grouped ones: bf16 on Hopper,
// where the host does not wait for them, with rows of whole 16 bytes and fewer than 1024 experts.
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
