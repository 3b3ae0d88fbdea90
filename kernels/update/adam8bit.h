#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/update/optimizer_step.h"

namespace moelab {

// AdamW (kernels/update/adamw.h) with moments in 8 bits, block-wise (Dettmers et al., arXiv 2110.02861;
// kernels/formats/quantize.h): m in the signed and v in the unsigned dynamic map, in blocks of 256
// consecutive elements, the last one perhaps shorter. Each block is decoded, stepped in fp32 and encoded to
// the nearest codes.
//
// master, gradient and compute_copy as for adamw_; m and v uint8, one an element; m_absmax and v_absmax fp32,
// one a block. All contiguous. A state of zeros is the state before the first step. A gradient element that
// is not finite leaves its weight alone, sets its moments to 0 and affects no other element; a finite one,
// however large, keeps its block finite (kernels/update/gradient_bound.h). Results do not depend on the
// number of threads. Throws c10::Error on other tensors.
struct Adam8bitState {
  at::Tensor m, m_absmax, v, v_absmax;
};
void adam8bit_(const at::Tensor& master, const at::Tensor& gradient, const Adam8bitState& state,
               const std::optional<at::Tensor>& compute_copy, const OptimizerStep& step);

}  // namespace moelab
