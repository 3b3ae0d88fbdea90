#pragma once
#include <ATen/ATen.h>

#include "kernels/operator/variants.h"

// The router's products on a GPU. Logits and the weight's gradient are of fp32's precision in every variant:
// "plain" converts x to fp32, a chunk of tokens at a time, and multiplies without tensor cores. "split", for
// x in bf16, splits the fp32 factor into three bf16 tensors that sum to it, so that tensor cores multiply,
// and keeps sums in fp32 (Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial intelligence datatype
// for higher-precision computations", 2019). x in other types takes "plain". On meta tensors each allocates
// what it allocates on a GPU. Axes: T tokens, D width, E experts.
namespace moelab::router_detail {

// Writes logits_TE (fp32): x_TD times the transpose of w_ED (fp32).
extern Variants<void(const at::Tensor& x_TD, const at::Tensor& w_ED, const at::Tensor& logits_TE)>
    router_logits;

// From dlogits_TE (fp32) writes dx_TD, in the type of x, and dw_ED (fp32).
extern Variants<void(const at::Tensor& x_TD, const at::Tensor& w_ED, const at::Tensor& dlogits_TE,
                     const at::Tensor& dx_TD, const at::Tensor& dw_ED)>
    router_gradients;

}  // namespace moelab::router_detail
