#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/element.h"

namespace moelab::cuda {

struct RopeShape {
  // positions: batch * sequence; sequence: of the table, which serves every so many positions anew
  int64_t positions, sequence, heads, rotated_heads, head_dim;
};

// Rotates in place qkv (positions, heads, head_dim), contiguous; sign -1 rotates back. table: see rope_table.
void rope(Element element, void* qkv, const float* table, const RopeShape& shape, float sign,
          cudaStream_t stream);

}  // namespace moelab::cuda
