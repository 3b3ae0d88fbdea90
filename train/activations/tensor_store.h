#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "train/settings/settings.h"

namespace moelab {

// A tensor in a store. Destroying the object frees its memory or file space.
class StoredTensor {
 public:
  virtual ~StoredTensor() = default;
  // Fills `to`, which is dense, with the stored elements in memory order; type and number of elements must
  // match.
  virtual void read(const at::Tensor& to) = 0;
  // The stored elements as bytes (uint8) on the device, shared by all callers and valid while this lives;
  // undefined if the caller must use read().
  virtual at::Tensor fetched() { return {}; }
};

// Holds tensors that autograd saved, between forward and backward, in some form and home.
class TensorStore {
 public:
  virtual ~TensorStore() = default;
  // `dense` has no gaps in memory and may be freed afterwards. On CUDA it is read after the work queued so
  // far, so nothing may write to it before then; autograd forbids that anyway.
  virtual std::unique_ptr<StoredTensor> store(const at::Tensor& dense) = 0;
  // Tensors stored from now on belong to the model's next block; `last`: backward begins with that one.
  virtual void begin_block(bool /*last*/) {}
  // How long threads of the step have stood still until tensors had come back or gone away.
  virtual double waited_seconds() const { return 0; }
};

// The store of activations.storage for tensors on `device`; null for `keep`. Throws IoError when its file
// can't be made.
std::unique_ptr<TensorStore> make_tensor_store(const Settings& settings, c10::Device device);

}  // namespace moelab
