#pragma once
#include "kernels/moe/expert_block_call.h"

// The Meta side of the expert block while meta stands for CUDA (kernels/meta/simulated_device.h). It
// allocates what the CUDA side (expert_block_cuda.cpp) allocates, in its order and for as long.
// For fp8, whose temporaries are one expert's at a time, all experts are assumed to have equally many rows.
namespace moelab {

expert_block_detail::Outputs expert_block_forward_cuda_meta(const expert_block_detail::ExpertCall& call,
                                                            bool keep);
expert_block_detail::Gradients expert_block_backward_cuda_meta(const expert_block_detail::ExpertCall& call,
                                                               const at::Tensor& h_R2F);

}  // namespace moelab
