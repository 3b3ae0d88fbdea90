#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

#include "moe/routing_state.h"
#include "moe/settings/pieces.h"

namespace moelab {

// B sequences of S tokens, width D.
struct BlockOutput {
  at::Tensor x_BSD;
  at::Tensor balance_loss;  // () fp32
  at::Tensor z_loss;        // () fp32
};

// One block, or one half of it, as a function of its input; the attention half has no losses. Called a second
// time with the same RoutingState, it replays the routing. It stays valid until the model is gone.
using BlockFunction = std::function<BlockOutput(const at::Tensor& x_BSD, RoutingState& routing)>;

using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;

// The seam inside a block: its pieces that are computed anew in backward. Asked in a forward with
// gradients alone; the functions that it is given are for later too, and stay valid until the model is gone.
class BlockPieces {
 public:
  virtual ~BlockPieces() = default;
  virtual bool recomputes(Piece piece) const = 0;
  // half(x_BSD, routing), of which x_BSD and the routing are kept; half runs again in backward.
  virtual BlockOutput recompute(const at::Tensor& x_BSD, RoutingState& routing,
                                const BlockFunction& half) = 0;
  // f(x), saved by none of those who compute with it: in backward each of them gets f of the saved x.
  virtual at::Tensor recompute_for_readers(const at::Tensor& x, const TensorFunction& f) = 0;
};

// The seam around each block that training fills: recompute, gather, prefetch, release. One that runs blocks
// by another hands on that one's pieces, or pieces that do theirs around it.
class BlockRunner {
 public:
  virtual ~BlockRunner() = default;
  virtual BlockOutput run(int64_t layer, const at::Tensor& x_BSD, const BlockFunction& block) = 0;
  // Of a block that is kept in part; null for one that is kept, or recomputed, whole. Lives as long as this.
  virtual BlockPieces* pieces(int64_t layer) = 0;
};

// Runs the block and nothing else.
class DirectRunner : public BlockRunner {
 public:
  BlockOutput run(int64_t, const at::Tensor& x_BSD, const BlockFunction& block) override {
    RoutingState routing;
    return block(x_BSD, routing);
  }
  BlockPieces* pieces(int64_t) override { return nullptr; }
};

}  // namespace moelab
