#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

// expert_block's experts alone, for rows that several ranks have sent: each rank's rows are a segment. No
// product mixes segments, so each row, and each segment's gradient of the weights, has the bits that
// expert_block computes for the rank's tokens. Not differentiable; on every device that has expert_block.
// Axes: N segments one behind another, R rows of all, D width, E experts, F expert width.
namespace moelab {

struct Segment {
  at::Tensor offsets_E1;  // (E+1) int32: expert e has the segment's rows [offsets[e], offsets[e+1])
  int64_t rows = 0;       // of all experts together; may be 0
  int64_t widest = 0;     // bound on the rows of one expert
};

// The dtype of experts' rows before they are summed: x's, or fp32 where products round only what they sum
// (16 bits on a CPU that multiplies them as fp32).
c10::ScalarType expert_row_type(const at::Tensor& rows_RD, const at::Tensor& w2_EDF, bool fp8);

struct SegmentOutputs {
  at::Tensor rows_RD;              // of expert_row_type, without router weights
  std::vector<at::Tensor> hidden;  // of each segment: the pre-activation (rows, 2F), or empty
};
// rows_RD, w13_E2FD, w2_EDF, fp8: as for expert_block. With `keep` the pre-activations are returned.
SegmentOutputs expert_segments_forward(const at::Tensor& rows_RD, std::span<const Segment> segments,
                                       const at::Tensor& w13_E2FD, const at::Tensor& w2_EDF, bool fp8,
                                       bool keep);

// Takes the gradients that a segment's rows give the weights.
using SegmentGradients =
    std::function<void(int64_t segment, const at::Tensor& dw13_E2FD, const at::Tensor& dw2_EDF)>;

// The gradients of the rows, of expert_row_type. dy_RD: the gradient of each row's token, which the result
// may overwrite. weights_R (fp32): the rows' router weights, which become their gradients. hidden: from
// forward; what is not empty is overwritten. `take` is called once for each segment, in order; what it does
// with the weights themselves it must leave to the last call.
at::Tensor expert_segments_backward(const at::Tensor& dy_RD, const at::Tensor& weights_R,
                                    const at::Tensor& rows_RD, std::span<const Segment> segments,
                                    const at::Tensor& w13_E2FD, const at::Tensor& w2_EDF,
                                    std::span<const at::Tensor> hidden, bool fp8,
                                    const SegmentGradients& take);

}  // namespace moelab
