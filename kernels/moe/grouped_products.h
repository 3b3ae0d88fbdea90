#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "kernels/operator/variants.h"

namespace moelab {

// Who multiplies the rows of each expert with its matrices on a GPU.
enum class ExpertProducts {
  each,      // LibTorch, an expert at a time: the host waits for where its rows begin
  gathered,  // one kernel of ours for all experts, which takes rows from where they lie (gathered_products.h)
  hopper,    // the same for Hopper, with its instructions
  grouped,   // LibTorch's grouped product, of rows that have been copied in the experts' order
};

constexpr bool takes_rows_where_they_lie(ExpertProducts products) {
  return products == ExpertProducts::gathered || products == ExpertProducts::hopper;
}

// Whether our kernel serves experts of width D and hidden width F on a GPU of this compute capability (10 *
// major + minor): bf16 or fp16 from 8.0 on, with rows of whole 16 bytes.
bool serves_gathered_products(int capability, at::ScalarType type, int64_t D, int64_t F);

// Variant "plain": each; "gathered": gathered where it serves, else each; "hopper": hopper where gathered
// serves on a GPU of capability 9.0, else as "gathered"; "grouped": LibTorch's where they serve without a
// wait, which is in bf16 on Hopper with rows of whole 16 bytes and fewer than 1024 experts, else as "hopper".
extern Variants<ExpertProducts(int capability, at::ScalarType type, int64_t E, int64_t D, int64_t F)>
    expert_products;

}  // namespace moelab
