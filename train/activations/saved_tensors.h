#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "moe/parameter.h"
#include "moe/runner.h"
#include "train/activations/tensor_store.h"

namespace moelab {

// Decides what happens to each tensor that autograd saves. A floating-point tensor of 1 KiB or more goes into
// the store, and backward gets a copy of it; saved twice, it is stored once. Parameters (recognised by their
// storage, because autograd also saves views of them), indices and smaller tensors stay as they are.
//
// Active while one of its Scopes exists on the thread that runs forward. A block that is recomputed in
// backward runs outside of a Scope, so what it saves for a moment is kept; its input, saved in forward, is
// stored.
//
// A tensor made by recompute_for_readers is not saved at all: backward computes it again.
class SavedTensors {
 public:
  // With a null store, all tensors that are not recomputed stay as they are. `parameters` must outlive this.
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

  // Returns f(x). When autograd saves the result, whole or as a view, in the scope open on this thread, x is
  // saved instead, and each backward node that needs the result gets f(x). f must make a contiguous tensor,
  // always the same for the same x. Without a scope, just f(x).
  static at::Tensor recompute_for_readers(const at::Tensor& x, const TensorFunction& f);

  // Tensors saved from now on, in the scope open on this thread if there is one, belong to the next block,
  // which may be the last before backward.
  static void begin_block(bool last);

  // Whether saved tensors in a scope are passed to this object: if there is a store, or a tensor to
  // recompute.
  bool acts() const { return store_ || !recomputed_.empty(); }

  // Bytes and number of tensors handed to the store in the last forward, each tensor counted once.
  int64_t stored_bytes() const { return stored_bytes_; }
  int64_t stored_tensors() const { return stored_tensors_; }
  double waited_seconds() const { return store_ ? store_->waited_seconds() : 0; }

 private:
  friend class SavedTensorHooks;
  // Identifies a tensor's elements in memory. Two views of the same elements are the same; a tensor changed
  // in place is not, as its version shows. (Memory shared without a shared version, as by _unsafe_view, is
  // saved by one of the two tensors only.)
  struct Seen {
    explicit Seen(const at::Tensor& tensor);
    bool is_same(const Seen& other) const;

    // Weak: does not keep the storage alive, but its address is not reused while this exists.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t offset, version;
    at::ScalarType type;
    std::vector<int64_t> sizes, strides;  // of a tensor without gaps: its number of elements, and 1
    std::weak_ptr<StoredTensor> stored;
  };
  struct Recomputed;  // how to compute a tensor again
  std::shared_ptr<const Recomputed> recomputed(const at::Tensor& tensor) const;
  bool leaves_alone(const at::Tensor& tensor) const;
  std::shared_ptr<StoredTensor> store(const at::Tensor& dense);

  std::unique_ptr<TensorStore> store_;
  std::unordered_set<const void*> parameters_;  // StorageImpl*
  // by StorageImpl*, for one forward
  std::unordered_map<const void*, std::vector<Seen>> seen_;
  std::unordered_map<const void*, std::shared_ptr<const Recomputed>> recomputed_;
  int64_t stored_bytes_ = 0, stored_tensors_ = 0;
};

}  // namespace moelab
