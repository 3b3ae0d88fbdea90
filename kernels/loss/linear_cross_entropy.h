#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace moelab {

// Another model's head for a comparison: its logits are x W^T, of the same tokens and vocabulary.
struct ReferenceHead {
  at::Tensor x_TD;       // (T, D'), contiguous, of the type of the logits that it is compared with
  at::Tensor weight_VD;  // (V, D'), likewise
  double weight = 0;     // of the divergence in the objective
};

// The output projection and the cross entropy in one operator, so that the (T, V) logits never exist whole:
// the mean over the tokens of -log softmax(x W^T)[target], in nats, an fp32 scalar.
//   x_TD (T, D) fp32, bf16 or fp16; weight_VD (V, D) of the same type; targets_T (T) int64 in [0, V), or -1:
//   the token is ignored, in the mean's denominator too. All contiguous. With nothing to average (T may be 0)
//   the result is 0.
//
// Gradients are computed in forward, a chunk of tokens at a time, as in Liger Kernel (arXiv 2410.10989). The
// weight's gradient is summed over the chunks in fp32; the upper 16 bits of each sum lie in its memory and
// are rounded there. The first backward gives the gradients away, so a second one through the same result
// throws. Softmax is in fp32; in 16 bits the logits and their gradients are rounded to 16 bits, as separate
// operators would. With the same number of threads every bit repeats.
//
// `gradient_scale`, () fp64 on x's device, is what the gradient of the result will be: a loss scale (1
// without it). Gradients are computed at that scale, so that in fp16 those of single logits do not vanish.
// Any other gradient works too, only less exactly. The scale is read on the device, in backward too, so that
// a CUDA graph uses its value at the time of the replay. Throws c10::Error on shapes, types or targets that
// are none of these.
at::Tensor linear_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                const at::Tensor& targets_T,
                                const std::optional<at::Tensor>& gradient_scale = {});

// As linear_cross_entropy, with KL(p || q) to a reference model, p from x W^T and q from the reference: the
// sum over the vocabulary of p (log p - log q), in nats, averaged over the same tokens. It is the divergence
// that keeps policies close to the model that they began as (arXiv 1909.08593, section 2; DeepSeekMath, arXiv
// 2402.03300, equation 3), computed in full instead of estimated from one id a token. The reference's logits
// exist a chunk at a time too, and it gets no gradient.
struct ComparedLoss {
  at::Tensor objective;  // () fp32: cross_entropy + reference.weight * divergence; the one to differentiate
  at::Tensor cross_entropy;  // () fp32, linear_cross_entropy's bits
  at::Tensor divergence;     // () fp32; exactly 0 if both models' logits have the same bits
};
ComparedLoss compared_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                    const at::Tensor& targets_T, const ReferenceHead& reference,
                                    const std::optional<at::Tensor>& gradient_scale = {});

// Bytes of logits that exist at a time, for a head of weight_bytes. A CPU's should stay in its cache. On a
// GPU each chunk reads and writes the fp32 sums of the weight's gradient, which must not take longer than its
// products: so its logits take as many bytes as the weight, from 48 to 256 MiB. memory.limit has no part in
// this: it may change no bit.
constexpr int64_t logit_chunk_bytes(bool gpu, int64_t weight_bytes) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return gpu ? std::clamp(weight_bytes, 48 * kMiB, 256 * kMiB) : 16 * kMiB;
}

// Tokens of a chunk: as many as fit logit_chunk_bytes with `element_size` bytes a logit, at least 16, and
// spread evenly over the chunks. `width`: D; a CPU does not ask.
int64_t linear_cross_entropy_chunk(int64_t tokens, int64_t vocabulary, int64_t element_size, bool gpu = false,
                                   int64_t width = 0);

}  // namespace moelab
