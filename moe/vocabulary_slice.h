#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "moe/communicator.h"

// Embedding and head over ranks that have a slice of the vocabulary each (Megatron-LM, arXiv 1909.08053,
// section 3): rank r of N has the ids from r * V on, V of them, as many as each other. All ranks have the
// same tokens and call these together.
//
// Axes: B sequences of S tokens, T tokens, D width, V ids of a rank.
namespace moelab {

// This rank's term of the embedding of tokens (B, S), ids of the whole vocabulary: (B, S, D), zeros where
// another rank has the id. Reducer::leave makes the embedding of it.
at::Tensor sliced_embedding(const at::Tensor& weight_VD, const at::Tensor& tokens_BS, Communicator& ranks);

// As linear_cross_entropy, to the same result on every rank. x's gradient is this rank's term of it, and the
// weight's is of its slice. Of each token the ranks tell one another the largest logit of their slices, the
// sum of powers below it, and the target's logit where they have it, a chunk of tokens at a time. Logits
// don't leave their rank.
at::Tensor sliced_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                const at::Tensor& targets_T, Communicator& ranks,
                                const std::optional<at::Tensor>& gradient_scale = {});

// Logits of all ids, (…, N * V), from this rank's (…, V), for decoding.
at::Tensor whole_logits(const at::Tensor& logits, Communicator& ranks);

}  // namespace moelab
