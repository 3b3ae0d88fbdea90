#pragma once
#include "moe/runner.h"
#include "train/placement/gather_weights.h"

namespace moelab {

// Runs each block by another runner with its weights gathered, and the next block's being fetched: in forward
// from the first to the last, in backward, from the gradient of a block's output to that of its input, from
// the last to the first. Blocks that are recomputed run again in between. Both must outlive the graph.
class GatherRunner : public BlockRunner {
 public:
  GatherRunner(GatheredWeights& weights, BlockRunner& inner) : weights_(weights), inner_(inner) {}
  BlockOutput run(int64_t layer, const at::Tensor& x_BSD, const BlockFunction& block) override;
  BlockPieces* pieces(int64_t layer) override { return inner_.pieces(layer); }

 private:
  GatheredWeights& weights_;
  BlockRunner& inner_;
};

}  // namespace moelab
