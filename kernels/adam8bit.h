#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/optimizer_step.h"

namespace moelab {

// AdamW's rule (kernels/adamw.h) on moments kept in 8 bits, block-wise (Dettmers et al., arXiv 2110.02861;
// kernels/quantize.h): m in the signed and v in the unsigned dynamic map, blocks of 256 elements of the flat
// tensor, the last one shorter. Each block is decoded, stepped in fp32 and encoded, nearest to even.
// master, gradient, copy as adamw_; m, v uint8, as many as master; m_absmax, v_absmax fp32, one a block;
// All zeros is the state before the first step. All contiguous. A gradient element
// that is not finite leaves its weight alone and sets its moments to 0; its neighbours don't notice. A finite
// one of any size keeps its block finite (kernels/cuda/gradient_bound.h). Results do not depend on the number
// of threads. Throws c10::Error on other tensors.
struct Adam8bitState {
  at::Tensor m, m_absmax, v, v_absmax;
};
void adam8bit_(const at::Tensor& master, const at::Tensor& gradient, const Adam8bitState& state,
               const std::optional<at::Tensor>& compute_copy, const OptimizerStep& step);

}  // namespace moelab
