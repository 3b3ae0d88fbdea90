#pragma once
#include "kernels/quantize.h"
#include "train/activations/tensor_store.h"

namespace moelab {

// Keeps a byte an element and a fp32 magnitude a block, on the device of the tensor (as ActNN, arXiv
// 2104.14129, at 8 bits, and COAT, arXiv 2410.19313): int8, or fp8 e4m3.
class CompressedStore : public TensorStore {
 public:
  CompressedStore(BlockCode code, int64_t block) : code_(code), block_(block) {}
  std::unique_ptr<StoredTensor> store(const at::Tensor& dense) override;

 private:
  BlockCode code_;
  int64_t block_;
};

}  // namespace moelab
