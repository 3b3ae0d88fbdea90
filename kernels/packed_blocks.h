#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/quantize.h"

namespace moelab {

// x (any shape, dense in memory; fp32, bf16 or fp16) in blocks of `block` elements, in memory order, coded as
// encode_block does: (4 * blocks + elements) uint8, the fp32 magnitudes of the blocks first, then a byte an
// element. The last block may be shorter. With whole blocks of 256 that is 1 + 4/256 bytes an element.
at::Tensor pack_blocks(const at::Tensor& x, BlockCode code, int64_t block);

// Writes to `x` what pack_blocks(x, code, block) made of a tensor of as many elements, in memory order.
void unpack_blocks(const at::Tensor& packed, BlockCode code, int64_t block, const at::Tensor& x);

}  // namespace moelab
