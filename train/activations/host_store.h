#pragma once
#include "train/activations/tensor_store.h"

namespace moelab {

// Host memory of a step, Home::host: a tensor each in the first micro-batch, then one slab of as many bytes
// (and up to 64 a tensor for alignment), made when the second begins and kept. A later step that needs more
// gets the rest as tensors of their own, and the slab grows before the next.
class HostSlab;

// Moves what autograd saved to host memory, outside of the device's budget, and back, bit for bit. The device
// is the CPU, whose budget the ledger plays, or meta.
class HostStore : public TensorStore {
 public:
  HostStore();
  std::unique_ptr<StoredTensor> store(const at::Tensor& dense) override;

 private:
  std::shared_ptr<HostSlab> slab_;
};

}  // namespace moelab
