#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "kernels/operator/variants.h"

namespace moelab {

// Who multiplies the rows of each expert with its matrices on a GPU.
enum class ExpertProducts {
  each,      // LibTorch, an expert at a time: the host waits for where its rows begin
  gathered,  // one kernel of ours for all experts, which takes rows from where they lie (gathered_products.h)
  grouped,   // LibTorch's grouped product, of rows that have been copied in the experts' order
};

// Whether our kernel serves experts of width D and hidden width F on a GPU of this compute capability (10 *
// major + minor): bf16 or fp16 from 8.0 on, with rows of whole 16 bytes.
bool serves_gathered_products(int capability, at::ScalarType type, int64_t D, int64_t F);

// Variant "plain": each; "gathered": gathered where it serves, else each; "grouped": LibTorch's where they
// serve without a wait, which is in bf16 on Hopper with rows of whole 16 bytes and fewer than 1024 experts,
// else as "gathered".
extern Variants<ExpertProducts(int capability, at::ScalarType type, int64_t E, int64_t D, int64_t F)>
    expert_products;

}  // namespace moelab
