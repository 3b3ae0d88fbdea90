#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "train/config/settings.h"

namespace moelab {

// One tensor as a store holds it. What it takes, memory or file, is given back with the object.
class StoredTensor {
 public:
  virtual ~StoredTensor() = default;
  // Fills `to`, which is dense and has the type and the number of elements that were stored, in memory order.
  virtual void read(const at::Tensor& to) = 0;
  // The same as bytes (uint8) that the store keeps on the device, for all who ask, as long as this lives;
  // undefined where read() is the way.
  virtual at::Tensor fetched() { return {}; }
};

// Where what autograd saved lies between forward and backward, and in which form.
class TensorStore {
 public:
  virtual ~TensorStore() = default;
  // `dense` is a tensor without gaps in memory; it may be freed afterwards. On CUDA it is read
  // behind what is queued now, so nothing may write to it before; autograd does not allow that either.
  virtual std::unique_ptr<StoredTensor> store(const at::Tensor& dense) = 0;
  // What is stored from now on is of the model's next block.
  virtual void begin_block() {}
};

// The store of activations.storage for tensors of `device`; null for `keep`. Throws IoError where its file
// can't be made.
std::unique_ptr<TensorStore> make_tensor_store(const Settings& settings, c10::Device device);

}  // namespace moelab
