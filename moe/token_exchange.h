#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/moe/dispatch.h"
#include "moe/communicator.h"

namespace moelab {

// Between dispatch and experts: the rows of each expert go to the rank that owns it, are computed there, and
// come back. Each of N ranks has its own tokens and the weights of E / N experts, in rank order.
//
// Rows of different ranks stay apart (kernels/moe/expert_segments.h), and their gradients of the weights are
// added in rank order in the weights' dtype. So N ranks have the bits of one that runs their micro-batches
// one after another and lets autograd accumulate; as far as the CPU's fp32 products give a row the same bits
// wherever it lies and on any number of threads.
//
// Routes by capacity go in equal parts, whose sizes every rank knows: nothing is counted, and the host waits
// for no device. All ranks then need equally many sequences of one length. Of dropless routes the ranks first
// tell one another their rows of each expert, which the host reads.
//
// A layer sends (N - 1) / N of R rows of D four times: forward x and outputs, backward dy with the router
// weights, and dx with their gradients, so that backward needs no further product. Saved for backward: the
// rows received, as many as all ranks sent here, and their pre-activation.
class TokenExchange {
 public:
  // All ranks make the same calls in the same order, backward passes included. `ranks` must outlive them.
  explicit TokenExchange(Communicator& ranks) : ranks_(ranks) {}

  // As expert_block, for routes of this rank's tokens to all E experts. w13_E2FD, w2_EDF: of this rank's
  // experts alone.
  at::Tensor experts(const at::Tensor& x_TD, const at::Tensor& weights_TK, const Routes& routes,
                     const at::Tensor& w13_E2FD, const at::Tensor& w2_EDF, bool fp8, bool keep_hidden) const;

 private:
  Communicator& ranks_;
};

}  // namespace moelab
