#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/element.h"

namespace moelab::cuda {

struct RopeShape {
  // positions: batch * sequence; sequence: rows of the table, which repeats after that many positions
  int64_t positions, sequence, heads, rotated_heads, head_dim;
};

// Rotates qkv (positions, heads, head_dim), contiguous, in place; sign -1 rotates back. table: see
// rope_table.
void rope(Element element, void* qkv, const float* table, const RopeShape& shape, float sign,
          cudaStream_t stream);

}  // namespace moelab::cuda
