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

// The policy that answers for every tensor that autograd saves. A floating-point tensor of 1 KiB or more goes
// into the store and comes back, as a copy, when backward asks for it; saved twice, it is stored once.
// Parameters (known by their storage: autograd also saves views of them), indices and smaller tensors stay as
// they are.
//
// It works while a Scope of it lives on the thread that runs forward. A block that is recomputed in backward
// runs outside of one, so what it saves for a moment is kept; its input, saved in forward, is stored.
//
// A tensor that recompute_for_readers made is not saved at all: backward gets it computed anew.
class SavedTensors {
 public:
  // A null store keeps everything else. `parameters` must outlive this.
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

  // f(x). Saved in the scope that is open on this thread, whole or as a view, x is saved instead, and
  // backward gets f(x) for each that saved it. f makes a contiguous tensor, always the same of the same x.
  // Without a scope it is f(x) and nothing more.
  static at::Tensor recompute_for_readers(const at::Tensor& x, const TensorFunction& f);

  // What is saved from now on, in the scope that is open on this thread if one is, is of the next block.
  static void begin_block();

  // Whether what is saved in a scope comes here: once there is a store, or a tensor to be recomputed.
  bool acts() const { return store_ || !recomputed_.empty(); }

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
    std::weak_ptr<StoredTensor> stored;
  };
  struct Recomputed;  // how to make a tensor anew
  std::shared_ptr<const Recomputed> recomputed(const at::Tensor& tensor) const;
  bool leaves_alone(const at::Tensor& tensor) const;
  std::shared_ptr<StoredTensor> store(const at::Tensor& dense);

  std::unique_ptr<TensorStore> store_;
  std::unordered_set<const void*> parameters_;  // StorageImpl*
  // by StorageImpl*, of one forward
  std::unordered_map<const void*, std::vector<Seen>> seen_;
  std::unordered_map<const void*, std::shared_ptr<const Recomputed>> recomputed_;
  int64_t stored_bytes_ = 0, stored_tensors_ = 0;
};

}  // namespace moelab
