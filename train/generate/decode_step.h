#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "moe/transformer.h"
#include "train/graph/step_graph.h"

namespace moelab {

// Reads one token for each of several texts in a pass that is always the same: tokens and positions are
// tensors of the device, and attention sees all places of the cache, most of them masked. On CUDA it is a
// graph (StepGraph), which does in one launch what takes hundreds; elsewhere the same work is done without.
// Logits are those of Transformer::next_logits up to rounding.
class DecodeStep {
 public:
  // A text of the pass: its next token, behind so many positions.
  struct Next {
    int64_t token = 0;
    int64_t position = 0;  // in [0, cache.positions())
  };

  // Whether the pass can be captured on the model's device: a mixture of experts only where their products
  // wait for nothing (kernels/expert_block_cuda.h): bf16 on Hopper, not fp8, with widths that are multiples
  // of 8. Always true elsewhere than on CUDA.
  static bool fits(const Transformer& model);

  // All are kept by reference and stay where they are, the model's weights too; `cache` has a sequence for
  // each text.
  DecodeStep(Transformer& model, BlockRunner& runner, KvCache& cache);

  // Logits (B, V) fp32 on the CPU behind the B texts' tokens, whose keys and values are in the cache then;
  // its lengths are the caller's to count. One whose token is of no use may stand anywhere; what is written
  // at its position is of no use either. Throws c10::OutOfMemoryError.
  at::Tensor read(const std::vector<Next>& texts);

 private:
  Transformer& model_;
  BlockRunner& runner_;
  KvCache& cache_;
  at::Tensor rope_P_;     // the cache's positions' table
  at::Tensor next_2B_;    // int64: tokens, positions
  at::Tensor logits_BV_;  // fp32
  StepGraph graph_;       // gone before what it uses
};

}  // namespace moelab
