#pragma once
#include <cstdint>
#include <limits>

#include "moe/runner.h"
#include "train/placement/gather_weights.h"

namespace moelab {

// Runs each block through another runner with the block's weights gathered, while the next block's are
// fetched. Forward goes from the first block to the last; backward, from the gradient of a block's output to
// that of its input, goes from the last to the first. Recomputed blocks run again in between, those of a
// segment with their weights gathered once more. The first
// block's weights are fetched with the embedding, the head's with the last block. Weights that are on their
// way from other ranks are waited for when a forward pass first reads them. `weights` and `inner` must
// outlive the graph.
class GatherRunner : public BlockRunner {
 public:
  GatherRunner(GatheredWeights& weights, BlockRunner& inner) : weights_(weights), inner_(inner) {}
  void use(OuterWeight weight, const std::function<void()>& read) override;
  BlockOutput run(int64_t layer, const at::Tensor& x_BSD, const BlockFunction& block) override;
  int64_t segment() const override { return inner_.segment(); }
  Hidden run_segment(int64_t end, Hidden hidden, const SegmentFunction& blocks) override;
  SelectiveRecompute* pieces(int64_t layer) override { return inner_.pieces(layer); }

 private:
  static constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

  GatheredWeights& weights_;
  BlockRunner& inner_;
  int64_t fetch_end_ = kNoEnd;  // blocks from this one on are not fetched ahead
};

}  // namespace moelab
