#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "moe/transformer.h"
#include "train/step/step_graph.h"

namespace moelab {

// Reads one token for each of several texts, in a forward pass that always has the same shapes: tokens and
// positions are device tensors, and attention covers all cache positions, masking unused ones. On CUDA the
// pass is a graph (StepGraph): one launch instead of hundreds. Elsewhere the same operators run directly.
// Logits equal those of Transformer::next_logits up to rounding.
class DecodeStep {
 public:
  // What the pass reads of one text: the token that the text was last given, and that token's position.
  struct Next {
    int64_t token = 0;
    int64_t position = 0;  // in [0, cache.positions())
  };

  // Whether the pass can be captured on the model's device. Always true except on CUDA with a mixture of
  // experts, whose products must not wait for the host (kernels/moe/grouped_products.h): bf16 or fp16, with
  // widths that are multiples of 8.
  static bool fits(const Transformer& model);

  // All arguments are kept by reference and must not move, nor may the model's weights; `cache` has one
  // sequence per text.
  DecodeStep(Transformer& model, BlockRunner& runner, KvCache& cache);

  // Returns logits (B, V) fp32 on the CPU after the B texts' tokens, and puts these tokens' keys and values
  // in the cache. The caller must update the cache's lengths. For an unused text any token and position will
  // do; ignore what is written there. Throws c10::OutOfMemoryError.
  at::Tensor read(const std::vector<Next>& texts);

 private:
  Transformer& model_;
  BlockRunner& runner_;
  KvCache& cache_;
  at::Tensor rope_P_;     // rotary table for the cache's positions
  at::Tensor next_2B_;    // int64: tokens, positions
  at::Tensor logits_BV_;  // fp32
  StepGraph graph_;       // declared last, so destroyed before what it uses
};

}  // namespace moelab
