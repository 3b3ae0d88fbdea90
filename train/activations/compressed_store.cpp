#include "train/activations/compressed_store.h"

#include "kernels/packed_blocks.h"

namespace moelab {
namespace {

struct PackedTensor : StoredTensor {
  PackedTensor(at::Tensor packed, BlockCode code, int64_t block)
      : packed(std::move(packed)), code(code), block(block) {}
  void read(const at::Tensor& to) override { unpack_blocks(packed, code, block, to); }

  at::Tensor packed;
  BlockCode code;
  int64_t block;
};

}  // namespace

std::unique_ptr<StoredTensor> CompressedStore::store(const at::Tensor& dense) {
  return std::make_unique<PackedTensor>(pack_blocks(dense, code_, block_), code_, block_);
}

}  // namespace moelab
