#pragma once
#include "train/activations/tensor_store.h"

namespace moelab {

// Host memory of a step, Home::host: a tensor each in the first micro-batch, then one slab of as many bytes
// (and up to 64 a tensor for alignment), made when the second begins and kept. A later step that needs more
// gets the rest as tensors of their own, and the slab grows before the next.
class HostSlab;

// Moves what autograd saved to host memory, outside of the device's budget, and back, bit for bit. On CUDA
// that memory is pinned, and copies have a stream of their own beside forward and backward.
class HostStore : public TensorStore {
 public:
  // With `ahead`, what backward wants is fetched a block ahead (FetchAhead).
  HostStore(c10::Device device, bool ahead);
  std::unique_ptr<StoredTensor> store(const at::Tensor& dense) override;
  void begin_block() override;

 private:
  std::shared_ptr<HostSlab> slab_;
};

}  // namespace moelab
