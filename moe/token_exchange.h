#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "kernels/moe/dispatch.h"
#include "moe/communicator.h"

namespace moelab {

// Between dispatch and experts: the rows of each expert go to the rank that owns it, are computed there, and
// come back. Each of N ranks has its own tokens and the weights of E / N experts, in rank order.
//
// Rows of different ranks stay apart (kernels/moe/expert_segments.h), and so do the gradients that they give
// the weights. Added in rank order, these have the bits of one rank that runs the micro-batches of all one
// after another; as far as the CPU's fp32 products give a row the same bits wherever it lies and on any
// number of threads.
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
  // Takes what the rows of rank `rank` give the gradient of `weight`, in backward: one call a rank, in rank
  // order. Autograd gets no gradient of these weights. In the last call the weight may be changed.
  using Gradients = std::function<void(const at::Tensor& weight, int64_t rank, const at::Tensor& gradient)>;

  // All ranks make the same calls in the same order, backward passes included. `ranks` must outlive them.
  TokenExchange(Communicator& ranks, Gradients gradients) : ranks_(ranks), gradients_(std::move(gradients)) {}

  const Communicator& ranks() const { return ranks_; }

  // Rows on their way to the owners of their experts.
  using Rows = c10::intrusive_ptr<c10::intrusive_ptr_target>;
  // x_TD, routes: of this rank's tokens, to all experts. The router weights follow in backward.
  Rows send(const at::Tensor& x_TD, const Routes& routes) const;
  // As expert_block, of what was sent, which is then used up. w13_E2FD, w2_EDF: of this rank's experts alone.
  at::Tensor experts(const Rows& rows, const at::Tensor& x_TD, const at::Tensor& weights_TK,
                     const Routes& routes, const at::Tensor& w13_E2FD, const at::Tensor& w2_EDF, bool fp8,
                     bool keep_hidden) const;

 private:
  Communicator& ranks_;
  Gradients gradients_;
};

}  // namespace moelab
