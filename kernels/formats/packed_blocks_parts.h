#pragma once
#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/formats/quantize.h"

// What the CPU, CUDA and Meta sides of packed blocks share.
namespace moelab::packed_blocks_detail {

// The two parts of what pack_blocks makes of a tensor (kernels/formats/packed_blocks.h): a magnitude for each
// of the blocks, then a byte per element.
struct Layout {
  int64_t count, block, blocks;

  Layout(const at::Tensor& x, int64_t block)
      : count(x.numel()), block(block), blocks(quant_blocks(count, block)) {
    TORCH_CHECK(block > 0 && x.is_non_overlapping_and_dense(),
                "packed blocks: dense tensors, blocks of one or more");
  }

  int64_t bytes() const { return blocks * int64_t{sizeof(float)} + count; }
  int64_t length(int64_t i) const { return std::min(block, count - i * block); }
  at::Tensor allocate(const at::Tensor& x) const {
    return at::empty({bytes()}, x.options().dtype(at::kByte));
  }
  void check(const at::Tensor& packed) const {
    TORCH_CHECK(packed.numel() == bytes(), "packed blocks: ", packed.numel(), " bytes for ", count,
                " elements");
  }
};

}  // namespace moelab::packed_blocks_detail
