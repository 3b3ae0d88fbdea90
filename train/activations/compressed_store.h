#pragma once
#include "kernels/quantize.h"
#include "train/activations/tensor_store.h"

namespace moelab {

// Keeps a byte an element and a fp32 magnitude a block (as ActNN, arXiv 2104.14129, at 8 bits, and COAT,
// arXiv 2410.19313): int8, or fp8 e4m3. Those bytes stay on the tensor's device, or go into another store.
class CompressedStore : public TensorStore {
 public:
  // `away`: where the bytes go; null: they stay.
  CompressedStore(BlockCode code, int64_t block, std::unique_ptr<TensorStore> away = nullptr)
      : code_(code), block_(block), away_(std::move(away)) {}
  std::unique_ptr<StoredTensor> store(const at::Tensor& dense) override;
  void begin_block() override;

 private:
  BlockCode code_;
  int64_t block_;
  std::unique_ptr<TensorStore> away_;
};

}  // namespace moelab
