#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/optimizer_step.h"

namespace moelab {

// AdamW's rule (kernels/adamw.h) on weights and moments in few bytes, as kernels/compact_format.h lays them
// out: bf16 weights with a correction, 2 + 1 bytes; m and v, 2 (1 + 2/32) bytes; 5.125 a parameter in all and
// 7.125 with a bf16 gradient. Groups of 32 elements of the flat tensor are decoded, stepped in fp32 and
// encoded to the nearest.
// weights bf16, or fp32 with no correction; correction int8, m int8, v uint8, as many; m_scale, v_scale int16
// (their bits), one a group; gradient fp32 or bf16. All zeros is the state before the first step. All
// contiguous. A gradient element that is not finite leaves its weight alone and sets its moments to 0.
// Nothing is allocated; results do not depend on the number of threads. Throws c10::Error on other tensors.
struct CompactState {
  at::Tensor m, m_scale, v, v_scale;
  std::optional<at::Tensor> correction;
};
void adamw_compact_(const at::Tensor& weights, const at::Tensor& gradient, const CompactState& state,
                    const OptimizerStep& step);

// fp32 weights from bf16 ones and their corrections, exact, on the CPU; and back, the nearest that there is,
// whatever devices the tensors are on.
at::Tensor joined_weights(const at::Tensor& bf16, const at::Tensor& correction);
void split_weights_(const at::Tensor& fp32, const at::Tensor& bf16, const at::Tensor& correction);

}  // namespace moelab
