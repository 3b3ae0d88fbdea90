#pragma once
#include <cstdint>

#include "kernels/device/element.h"
#include "kernels/device/launch.h"

namespace moelab {

// Vocabulary rows that one partial maximum and sum cover.
constexpr int64_t kCrossEntropySplit = 512;
inline int64_t cross_entropy_parts(int64_t vocabulary) {
  return cuda::ceil_div(vocabulary, kCrossEntropySplit);
}

// Tokens of a block of threads. A block covers one part of the vocabulary.
constexpr int64_t kCrossEntropyTokens = 32;

// Blocks along x and y; CUDA's bound on y allows 65,535 parts.
struct CrossEntropyGrid {
  unsigned tokens, parts;
};
inline CrossEntropyGrid cross_entropy_grid(int64_t tokens, int64_t vocabulary) {
  return {cuda::blocks_of(tokens, kCrossEntropyTokens), cuda::blocks_of(cross_entropy_parts(vocabulary))};
}

// The target of a token that is ignored.
constexpr int64_t kIgnoredTarget = -1;

// Another model's logits for the same tokens. They give q, which is compared with p of the chunk's own
// logits.
struct ReferenceChunk {
  const void* logits = nullptr;        // (V, R); null: no reference
  double weight = 0;                   // of the divergence in the differentiated loss
  float* partial_max = nullptr;        // (P, R) scratch; later the partial divergence
  float* partial_sum = nullptr;        // (P, R) scratch
  float* token_inverse_sum = nullptr;  // (R) scratch: exp(logit - maximum) times this is p
  float* token_shift = nullptr;        // (R) scratch: log p - log q is the logits' difference less this
  float* token_divergence = nullptr;   // (R) scratch
  float* token_scale = nullptr;        // (R) scratch: as CrossEntropyChunk's, for the divergence
  double* row_divergence = nullptr;    // (R): KL(p || q), 0 for ignored targets
};

// Softmax cross entropy of a chunk of tokens over transposed logits, on the CPU or on CUDA. R tokens, V
// vocabulary, P = ceil(V / kCrossEntropySplit).
struct CrossEntropyChunk {
  void* logits;  // (V, R), replaced by its gradient when `gradient`
  cuda::Element element;
  bool gradient;
  int64_t vocabulary, tokens;
  const int64_t* targets;         // (R)
  const double* gradient_factor;  // (): the loss scale divided by the number of targets in all chunks
  float* partial_max;             // (P, R) scratch
  float* partial_sum;             // (P, R) scratch: sum of exp(logit - partial maximum)
  float* token_max;               // (R) scratch
  float* token_scale;             // (R) scratch: exp(logit - maximum) times this is the gradient
  float* token_target;            // (R) scratch: the gradient at the target
  double* row_loss;               // (R)
  ReferenceChunk reference = {};
};

}  // namespace moelab
