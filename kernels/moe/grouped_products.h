#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "kernels/operator/variants.h"

namespace moelab {

// Whether LibTorch's grouped products serve E experts of width D and hidden width F on the GPU: bf16 on
// Hopper, where the host does not wait for them, with rows of whole 16 bytes and fewer than 1024 experts.
bool serves_grouped_products(c10::Device gpu, at::ScalarType type, int64_t E, int64_t D, int64_t F);

// Whether products over experts are the grouped ones: variant "plain": never, each expert has a product of
// its own, and the host waits for where its rows begin; "grouped": where they serve.
extern Variants<bool(c10::Device gpu, at::ScalarType type, int64_t E, int64_t D, int64_t F)>
    has_grouped_products;

}  // namespace moelab
