#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/element.h"
#include "kernels/formats/quantize.h"

namespace moelab::cuda {

// Encodes x[0 .. count) as one magnitude per `block` elements and one byte per element, with the bits of
// encode_block, and decodes it. `code` is int8, e4m3 or e5m2; int8 codes may differ by one where two are
// equally near.
void pack_blocks(Element element, const void* x, int64_t count, int64_t block, BlockCode code, float* absmax,
                 uint8_t* bytes, cudaStream_t stream);
void unpack_blocks(Element element, const float* absmax, const uint8_t* bytes, int64_t count, int64_t block,
                   BlockCode code, void* x, cudaStream_t stream);

}  // namespace moelab::cuda
