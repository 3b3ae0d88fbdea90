#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/formats/quantize.h"

namespace moelab {

// Encodes x (any shape, dense in memory; fp32, bf16 or fp16) with encode_block, in memory order and in blocks
// of `block` elements, the last one perhaps shorter. Result: (4 * blocks + elements) uint8, first the blocks'
// fp32 magnitudes, then a byte per element. With whole blocks of 256 that is 1 + 4/256 bytes per element.
at::Tensor pack_blocks(const at::Tensor& x, BlockCode code, int64_t block);

// Decodes into `x` what pack_blocks(…, code, block) made of a tensor with as many elements, in memory order.
void unpack_blocks(const at::Tensor& packed, BlockCode code, int64_t block, const at::Tensor& x);

}  // namespace moelab
