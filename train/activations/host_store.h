#pragma once
#include "train/activations/tensor_store.h"

namespace moelab {

// The host memory (Home::host) of a step's saved tensors. The first micro-batch allocates each tensor
// separately. When the second begins, one slab of that many bytes (plus up to 64 per tensor for alignment) is
// allocated and kept. If a later step needs more, the excess is allocated per tensor, and the slab grows
// before the next step.
class HostSlab;

// Moves tensors that autograd saved to host memory, outside of the device's budget, and back, exactly. On
// CUDA that memory is pinned, and copies run on streams of their own, concurrent with forward and backward.
class HostStore : public TensorStore {
 public:
  // `ahead`: fetches for backward one block ahead (FetchAhead).
  HostStore(c10::Device device, bool ahead);
  std::unique_ptr<StoredTensor> store(const at::Tensor& dense) override;
  void begin_block(bool last) override;
  double waited_seconds() const override;

 private:
  std::shared_ptr<HostSlab> slab_;
};

}  // namespace moelab
