#pragma once
#include "kernels/moe/expert_rows.h"
#include "kernels/operator/variants.h"

// Operators of expert_rows.h that have variants: "plain", an element at a time, and "packed". They differ in
// no allocation, so a dry run (expert_block_cuda_meta.cpp) stands for both; the sums of swiglu_backward have
// other orders.
namespace moelab::cuda {

extern Variants<CombineRows> combine_rows;
extern Variants<Swiglu> swiglu;
extern Variants<SwigluBackward> swiglu_backward;

}  // namespace moelab::cuda
