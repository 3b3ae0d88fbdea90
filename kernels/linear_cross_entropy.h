#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace moelab {

// Another model's side of a comparison: its logits are x W^T, of the same tokens and vocabulary.
struct ReferenceHead {
  at::Tensor x_TD;       // (T, D'), of the type of the logits that it is compared with, contiguous
  at::Tensor weight_VD;  // (V, D') likewise
  double weight = 0;     // of the divergence in the objective
};

// The output projection and the cross entropy in one, so that the (T, V) logits never exist whole: mean over
// the tokens of -log softmax(x W^T)[target], in nats.
//   x_TD (T, D) fp32, bf16 or fp16; weight_VD (V, D) of the same type; targets_T (T) int64 in [0, V), or -1:
//   the token is ignored, in the mean's denominator too. All contiguous. T may be 0; with nothing to average
//   the result is 0.
// Returns an fp32 scalar. The gradients are computed with it, a chunk of tokens at a time, as in Liger Kernel
// (arXiv 2410.10989); those of the weight are summed over the chunks in fp32, in the memory of which they are
// rounded. A second backward through the same result throws: the first gives the gradients away. Softmax is
// in fp32; in 16 bits the logits and their gradients are rounded to them, as separate operators would. With
// the same number of threads every bit repeats. `gradient_scale`, () fp64 on x's device, is what the gradient
// of the result will be, a loss scale (1 without it): gradients are computed at that scale, so that in fp16
// those of single logits do not vanish; any other gradient is right too, only less exact. It is read where it
// lies, in the backward too, so that a step that a CUDA graph holds takes what is there at the time. Throws
// c10::Error on shapes, types or targets that are none of these.
at::Tensor linear_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                const at::Tensor& targets_T,
                                const std::optional<at::Tensor>& gradient_scale = {});

// The same with KL(p || q) to a reference beside it, p of x W^T and q of the reference: the sum over the
// vocabulary of p (log p - log q), in nats, averaged over the same tokens. It is the divergence by which
// policies are held to the model that they began as (arXiv 1909.08593, section 2; DeepSeekMath, arXiv
// 2402.03300, equation 3), in full instead of estimated from one id a token. The reference's logits exist a
// chunk at a time too, and it gets no gradient.
struct ComparedLoss {
  at::Tensor objective;  // () fp32: cross_entropy + reference.weight * divergence; the one to differentiate
  at::Tensor cross_entropy;  // () fp32, linear_cross_entropy's bits
  at::Tensor divergence;     // () fp32; exactly 0 where the logits' bits are the same
};
ComparedLoss compared_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                    const at::Tensor& targets_T, const ReferenceHead& reference,
                                    const std::optional<at::Tensor>& gradient_scale = {});

// Bytes of logits that exist at a time: a CPU's are to stay in its cache, a GPU takes fewer and larger
// products.
constexpr int64_t logit_chunk_bytes(bool gpu) { return int64_t{gpu ? 48 : 16} << 20; }

// Tokens whose logits exist at a time: as many as fit logit_chunk_bytes with `element_size` bytes a logit, at
// least 16, and spread evenly over the chunks.
int64_t linear_cross_entropy_chunk(int64_t tokens, int64_t vocabulary, int64_t element_size,
                                   bool gpu = false);

}  // namespace moelab
