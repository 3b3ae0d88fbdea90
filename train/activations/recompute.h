#pragma once
#include <vector>

#include "moe/runner.h"
#include "train/config/settings.h"

namespace moelab {

// Which blocks `settings` recomputes, one flag a layer: every: 0, N, 2N, …; ratio r: ceil(r * layers) or
// fewer, spread evenly (ratio 0.5 is every other block).
std::vector<bool> recomputed_layers(const ActivationSettings& settings, int64_t layers);

// Activation checkpointing (Chen 2016, arXiv 1604.06174): a chosen block keeps its input and its routing,
// nothing else, and runs again in backward. Bitwise neutral: the routing is replayed, the block itself draws
// no random numbers, and the kind scopes of the forward are opened again. Balance statistics count once.
class RecomputeRunner : public BlockRunner {
 public:
  explicit RecomputeRunner(std::vector<bool> recomputed) : recomputed_(std::move(recomputed)) {}
  BlockOutput run(int64_t layer, const at::Tensor& x_BSD, const BlockFunction& block) override;

 private:
  std::vector<bool> recomputed_;
};

}  // namespace moelab
