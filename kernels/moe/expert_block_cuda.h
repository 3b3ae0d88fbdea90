#pragma once
#ifdef MOELAB_WITH_CUDA
#include <ATen/core/Tensor.h>

#include "kernels/moe/expert_block_call.h"

// The CUDA side of the operators of kernels/moe/expert_block.h. If all experts have equally many rows (by
// capacity, unless the capacity is all tokens and each goes to all experts), the host does not wait for the
// device. Otherwise, in bf16 on Hopper with D and F multiples of 8 and fewer than 1024 experts, products over
// experts are LibTorch's grouped ones, which do not wait either. In all other cases, and in fp8, there is one
// product per expert, and the host waits once, for the offsets.
namespace moelab {

expert_block_detail::Outputs expert_block_forward_cuda(const expert_block_detail::ExpertCall& call,
                                                       bool keep);
expert_block_detail::Gradients expert_block_backward_cuda(const expert_block_detail::ExpertCall& call,
                                                          const at::Tensor& dy_TD, const at::Tensor& h_R2F);

}  // namespace moelab
#endif
