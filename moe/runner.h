#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "moe/routing_state.h"
#include "moe/settings/pieces.h"

namespace moelab {

// B sequences of S tokens, width D.
struct BlockOutput {
  at::Tensor x_BSD;
  at::Tensor balance_loss;  // () fp32
  at::Tensor z_loss;        // () fp32
};

// What one block, or a stage, hands to the next one.
struct Hidden {
  at::Tensor x_BSD;         // (B, S, D) compute: the residual stream
  at::Tensor balance_loss;  // () fp32: sum over the blocks so far, divided by the whole model's layers
  at::Tensor z_loss;        // () fp32: such a sum of the router's z-loss
};

// One block, or one half of it, as a function of its input; the attention half has no losses. Called again
// with the same RoutingState, it replays the routing. Valid as long as the model lives.
using BlockFunction = std::function<BlockOutput(const at::Tensor& x_BSD, RoutingState& routing)>;

// Several blocks, one after another, each by the runner. Valid as long as the model and the runner live.
using SegmentFunction = std::function<Hidden(Hidden)>;

using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;

// Selective recomputation inside a block: some of its parts ("pieces") are recomputed in backward. Used only
// in a forward with gradients. The functions given to it are called later too; they are valid as long as the
// model lives.
class SelectiveRecompute {
 public:
  virtual ~SelectiveRecompute() = default;
  virtual bool recomputes(Piece piece) const = 0;
  // Runs half(x_BSD, routing) and keeps only x_BSD and the routing; half runs again in backward.
  virtual BlockOutput recompute(const at::Tensor& x_BSD, RoutingState& routing,
                                const BlockFunction& half) = 0;
  // f(x), which no operator that reads it saves: in backward each of them gets f of the saved x.
  virtual at::Tensor recompute_for_readers(const at::Tensor& x, const TensorFunction& f) = 0;
};

// The weights outside of the blocks that a forward pass reads, and backward does not.
enum class OuterWeight : uint8_t { embedding, head };

// The hook around each block, for training to fill: recompute, gather, prefetch, release. A runner that wraps
// another passes the other's pieces on, or wraps them too.
class BlockRunner {
 public:
  virtual ~BlockRunner() = default;
  // Calls read(), which reads that weight.
  virtual void use(OuterWeight /*weight*/, const std::function<void()>& read) { read(); }
  virtual BlockOutput run(int64_t layer, const at::Tensor& x_BSD, const BlockFunction& block) = 0;
  // How many blocks a forward pass with gradients hands to run_segment() at a time; the last ones may be
  // fewer.
  virtual int64_t segment() const { return 1; }
  // Returns blocks(hidden), where `blocks` are those before `end`.
  virtual Hidden run_segment(int64_t /*end*/, Hidden hidden, const SegmentFunction& blocks) {
    return blocks(std::move(hidden));
  }
  // For a block that is recomputed in part; null if it is kept, or recomputed, whole. Lives as long as this.
  virtual SelectiveRecompute* pieces(int64_t layer) = 0;
};

// Runs the block and nothing else.
class DirectRunner : public BlockRunner {
 public:
  BlockOutput run(int64_t, const at::Tensor& x_BSD, const BlockFunction& block) override {
    RoutingState routing;
    return block(x_BSD, routing);
  }
  SelectiveRecompute* pieces(int64_t) override { return nullptr; }
};

}  // namespace moelab
