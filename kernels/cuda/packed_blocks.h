#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/element.h"
#include "kernels/quantize.h"

namespace moelab::cuda {

// x[0 .. count) to a magnitude for each `block` elements and a byte for each, bit for bit as encode_block,
// and back. `code` is int8, e4m3 or e5m2; int8 codes may differ by one where two are equally near.
void pack_blocks(Element element, const void* x, int64_t count, int64_t block, BlockCode code, float* absmax,
                 uint8_t* bytes, cudaStream_t stream);
void unpack_blocks(Element element, const float* absmax, const uint8_t* bytes, int64_t count, int64_t block,
                   BlockCode code, void* x, cudaStream_t stream);

}  // namespace moelab::cuda
