#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace moelab {

// Whether products over E experts of width D and hidden width F are LibTorch's grouped ones on the GPU: bf16
// on Hopper, where the host does not wait for them, with rows of whole 16 bytes and fewer than 1024 experts.
bool has_grouped_products(c10::Device gpu, at::ScalarType type, int64_t E, int64_t D, int64_t F);

}  // namespace moelab
