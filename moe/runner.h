#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

#include "moe/routing_state.h"

namespace moelab {

// B sequences of S tokens, width D.
struct BlockOutput {
  at::Tensor x_BSD;
  at::Tensor balance_loss;  // () fp32
  at::Tensor z_loss;        // () fp32
};

// One block as a function of its input. Called a second time with the same RoutingState, it replays the
// routing. It stays valid until the model is gone.
using BlockFunction = std::function<BlockOutput(const at::Tensor& x_BSD, RoutingState& routing)>;

// The seam around each block that training fills: recompute, gather, prefetch, release.
class BlockRunner {
 public:
  virtual ~BlockRunner() = default;
  virtual BlockOutput run(int64_t layer, const at::Tensor& x_BSD, const BlockFunction& block) = 0;
};

// Runs the block and nothing else.
class DirectRunner : public BlockRunner {
 public:
  BlockOutput run(int64_t, const at::Tensor& x_BSD, const BlockFunction& block) override {
    RoutingState routing;
    return block(x_BSD, routing);
  }
};

}  // namespace moelab
