#pragma once
#include <memory>
#include <vector>

#include "moe/runner.h"
#include "train/settings/settings.h"

namespace moelab {

// Which blocks are recomputed alone, one flag per layer. every: 0, N, 2N, …; ratio r: ceil(r * layers) or
// fewer, spread evenly (ratio 0.5 is every other block); segments: all, if a segment is one block.
std::vector<bool> recomputed_layers(const ActivationSettings& settings, int64_t layers);

// How many blocks are recomputed together, from one kept input; 1: each block alone, if at all.
int64_t recomputed_together(const ActivationSettings& settings);

// Checkpoints f(x_BSD, routing) for autograd (Chen 2016, arXiv 1604.06174): keeps only the input and the
// routing, and runs f again in backward. Bitwise neutral: the routing is replayed, f draws no random numbers,
// and the forward's kind scope is opened again. Balance statistics count once.
BlockOutput recompute(const at::Tensor& x_BSD, RoutingState& routing, const BlockFunction& f);

// Recomputes the chosen blocks completely, and the given pieces of the others (selective recomputation,
// Korthikanti 2022, arXiv 2205.05198). Norms are recomputed only inside a SavedTensors scope, else kept.
// With `together` above 1, no block alone is chosen: of so many blocks only the input of the first and the
// routing are kept, and backward runs them all again before it goes through them; what they then keep, but
// for the pieces, is all there at once.
class RecomputeRunner : public BlockRunner {
 public:
  explicit RecomputeRunner(std::vector<bool> recomputed, std::vector<Piece> pieces = {},
                           int64_t together = 1);
  RecomputeRunner(const ActivationSettings& settings, int64_t layers);
  int64_t segment() const override { return together_; }
  Hidden run_segment(int64_t end, Hidden hidden, const SegmentFunction& blocks) override;
  BlockOutput run(int64_t layer, const at::Tensor& x_BSD, const BlockFunction& block) override;
  SelectiveRecompute* pieces(int64_t layer) override;

 private:
  std::vector<bool> recomputed_;
  std::unique_ptr<SelectiveRecompute> pieces_;  // null: none
  int64_t together_;
  std::vector<RoutingState>* routing_ = nullptr;  // of the segment that runs, by layer; null: of no segment
};

}  // namespace moelab
