#pragma once
#include "kernels/expert_block_call.h"

// The Meta side of the expert block where meta stands for CUDA (kernels/meta/stands_for.h): what the
// functions of kernels/expert_block_cuda.h allocate, in their order and for as long. In fp8, whose
// temporaries are one expert's at a time, experts are taken to have as many rows.
namespace moelab {

expert_block_detail::Outputs expert_block_forward_cuda_meta(const expert_block_detail::ExpertCall& call,
                                                            bool keep);
expert_block_detail::Gradients expert_block_backward_cuda_meta(const expert_block_detail::ExpertCall& call,
                                                               const at::Tensor& h_R2F);

}  // namespace moelab
