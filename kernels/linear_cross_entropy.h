#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace moelab {

// The output projection and the cross entropy in one, so that the (T, V) logits never exist whole: mean over
// the tokens of -log softmax(x W^T)[target], in nats.
//   x_TD (T, D) fp32, bf16 or fp16; weight_VD (V, D) of the same type; targets_T (T) int64 in [0, V), or -1:
//   the token is ignored, in the mean's denominator too. All contiguous. T may be 0; with nothing to average
//   the result is 0.
// Returns an fp32 scalar. The gradients are computed with it, a chunk of tokens at a time, as in Liger Kernel
// (arXiv 2410.10989); those of the weight are summed over the chunks in fp32. A second backward through the
// same result throws: the first gives the gradients away. Softmax is in fp32; in 16 bits the logits and their
// gradients are rounded to them, as separate operators would. With the same number of threads every bit
// repeats. `gradient_scale` is what the gradient of the result will be, a loss scale: gradients are computed
// at that scale, so that in fp16 those of single logits do not vanish; any other gradient is right too, only
// less exact. Throws c10::Error on shapes, types or targets that are none of these.
at::Tensor linear_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                const at::Tensor& targets_T, double gradient_scale = 1);

// Tokens whose logits exist at a time: as many as fit 16 MiB with `element_size` bytes a logit, at least 16,
// and spread evenly over the chunks.
int64_t linear_cross_entropy_chunk(int64_t tokens, int64_t vocabulary, int64_t element_size);

}  // namespace moelab
