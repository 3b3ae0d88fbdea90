#include "train/activations/compressed_store.h"

#include <ATen/ATen.h>

#include "kernels/formats/packed_blocks.h"

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

// Packed bytes in another store; they return to the device to be decoded.
struct OffloadedPackedTensor : StoredTensor {
  OffloadedPackedTensor(const at::Tensor& packed, BlockCode code, int64_t block, TensorStore& away)
      : bytes(packed.numel()), away(away.store(packed)), code(code), block(block) {}
  void read(const at::Tensor& to) override {
    at::Tensor packed = away->fetched();
    if (!packed.defined()) {
      packed = at::empty({bytes}, to.options().dtype(at::kByte));
      away->read(packed);
    }
    unpack_blocks(packed, code, block, to);
  }

  int64_t bytes;
  std::unique_ptr<StoredTensor> away;
  BlockCode code;
  int64_t block;
};

}  // namespace

std::unique_ptr<StoredTensor> CompressedStore::store(const at::Tensor& dense) {
  at::Tensor packed = pack_blocks(dense, code_, block_);
  if (away_) return std::make_unique<OffloadedPackedTensor>(packed, code_, block_, *away_);
  return std::make_unique<PackedTensor>(std::move(packed), code_, block_);
}

void CompressedStore::begin_block(bool last) {
  if (away_) away_->begin_block(last);
}

}  // namespace moelab
