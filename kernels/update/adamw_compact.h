#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/update/optimizer_step.h"

namespace moelab {

// AdamW (kernels/update/adamw.h) with weights and moments in few bytes (kernels/formats/compact_format.h):
// bf16 weights with a correction take 2 + 1 bytes, m and v 2 (1 + 2/32); 5.125 bytes a parameter in
// all, 7.125 with a bf16 gradient. Groups of 32 consecutive elements are decoded, stepped in fp32 and encoded
// to nearest.
//
// weights: bf16 with a correction, or fp32 without. correction int8, m int8, v uint8, one an element; m_scale
// and v_scale int16 (bit patterns), one a group; gradient fp32 or bf16. All contiguous. A state of zeros is
// the state before the first step. A gradient element that is not finite leaves its weight alone and sets its
// moments to 0. Nothing is allocated; results do not depend on the number of threads. Throws c10::Error on
// other tensors.
struct CompactState {
  at::Tensor m, m_scale, v, v_scale;
  std::optional<at::Tensor> correction;
};
void adamw_compact_(const at::Tensor& weights, const at::Tensor& gradient, const CompactState& state,
                    const OptimizerStep& step);

// joined_weights: the exact fp32 values, on the CPU, of bf16 weights with their corrections. split_weights_:
// the reverse, to the nearest weight that can be stored. The tensors given may be on any device.
at::Tensor joined_weights(const at::Tensor& bf16, const at::Tensor& correction);
void split_weights_(const at::Tensor& fp32, const at::Tensor& bf16, const at::Tensor& correction);

}  // namespace moelab
