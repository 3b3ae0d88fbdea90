#pragma once
#include <ATen/core/Tensor.h>

#include "moe/communicator.h"

namespace moelab {

// The sums of tensor parallelism (Megatron-LM, arXiv 1909.08053, section 3; f and g there). Each rank has a
// slice of a block's weights (moe/tensor_slice.h) and the whole residual stream, so what its products add to
// the stream, and to the gradients of what they read, is one term of a sum over the ranks.
//
// A sum starts from zero in fp32, takes each rank's term in rank order, and is rounded once; every rank gets
// the same bits. Terms travel in their own dtype. Sent by a rank of N: 2 (N - 1) / N of the tensor's bytes.
class Reducer {
 public:
  Reducer() = default;  // the only rank: both functions return their argument
  explicit Reducer(Communicator& ranks) : ranks_(&ranks) {}

  // For what a rank's slices read and every rank has alike, activations or weights: x itself, whose gradient
  // is the sum of the ranks' gradients.
  at::Tensor enter(const at::Tensor& x) const;
  // For what a rank's slices compute: the sum of the ranks' terms. Each term gets the sum's gradient.
  at::Tensor leave(const at::Tensor& term) const;

 private:
  Communicator* ranks_ = nullptr;
};

}  // namespace moelab
