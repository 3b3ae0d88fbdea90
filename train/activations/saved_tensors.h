#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "moe/parameter.h"
#include "train/activations/tensor_store.h"

namespace moelab {

// The policy that answers for every tensor that autograd saves. A floating-point tensor of 1 KiB or more goes
// into the store and comes back, as a copy, when backward asks for it; saved twice, it is stored once.
// Parameters (known by their storage: autograd also saves views of them), indices and smaller tensors stay as
// they are.
//
// It works while a Scope of it lives on the thread that runs forward. A block that is recomputed in backward
// runs outside of one, so what it saves for a moment is kept; its input, saved in forward, is stored.
class SavedTensors {
 public:
  // A null store keeps everything. `parameters` must outlive this.
  SavedTensors(std::unique_ptr<TensorStore> store, const std::vector<Parameter>& parameters);

  class Scope {
   public:
    explicit Scope(SavedTensors& saved);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    SavedTensors& saved_;
    SavedTensors* previous_;
  };

  // Bytes handed to the store in the last forward, each tensor counted once, and how many tensors that were.
  int64_t stored_bytes() const { return stored_bytes_; }
  int64_t stored_tensors() const { return stored_tensors_; }

 private:
  friend class SavedTensorHooks;
  // A tensor's elements in memory: two views of the same ones are the same, a tensor changed in place is not
  // (its version says so; memory shared without sharing the version, as by _unsafe_view, is saved by one side
  // alone).
  struct Seen {
    explicit Seen(const at::Tensor& tensor);
    bool is_same(const Seen& other) const;

    // Weak: the storage goes when it would, but its address is not used again while this lives.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t offset, version;
    at::ScalarType type;
    std::vector<int64_t> sizes, strides;  // of a tensor without gaps: its number of elements, and 1
    std::weak_ptr<const StoredTensor> stored;
  };
  bool leaves_alone(const at::Tensor& tensor) const;
  std::shared_ptr<const StoredTensor> store(const at::Tensor& dense);

  std::unique_ptr<TensorStore> store_;
  std::unordered_set<const void*> parameters_;               // StorageImpl*
  std::unordered_map<const void*, std::vector<Seen>> seen_;  // by StorageImpl*, of one forward
  int64_t stored_bytes_ = 0, stored_tensors_ = 0;
};

}  // namespace moelab
