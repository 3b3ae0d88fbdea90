#pragma once
#include "kernels/formats/quantize.h"
#include "train/activations/tensor_store.h"

namespace moelab {

// Stores one byte per element and one fp32 magnitude per block, as int8 or fp8 e4m3 (as ActNN, arXiv
// 2104.14129, at 8 bits, and COAT, arXiv 2410.19313). These bytes stay on the tensor's device or go to
// another store.
class CompressedStore : public TensorStore {
 public:
  // `away`: the store for the bytes; null: they stay on the device.
  CompressedStore(BlockCode code, int64_t block, std::unique_ptr<TensorStore> away = nullptr)
      : code_(code), block_(block), away_(std::move(away)) {}
  std::unique_ptr<StoredTensor> store(const at::Tensor& dense) override;
  void begin_block(bool last) override;
  double waited_seconds() const override { return away_ ? away_->waited_seconds() : 0; }

 private:
  BlockCode code_;
  int64_t block_;
  std::unique_ptr<TensorStore> away_;
};

}  // namespace moelab
