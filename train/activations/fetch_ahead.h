#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "train/activations/tensor_store.h"

namespace moelab {

class OffloadedTensor;

// Tensors held outside of the device, grouped by the model block that stored them. Backward reads the blocks
// from last to first, so the first read of a block's tensor starts fetching all tensors of that block and of
// the one before it.
//
// Active on CUDA, where copies run concurrently with other work. When inactive, each read waits for its own
// copy.
class FetchAhead {
 public:
  explicit FetchAhead(bool active) : active_(active) {}
  bool active() const { return active_; }

  // Tensors stored from now on belong to the next block.
  void begin_block();

  // Adds `tensor` to the current block and returns the block's index.
  size_t add(OffloadedTensor& tensor);
  void remove(OffloadedTensor& tensor, size_t block);
  void want(size_t block);

 private:
  bool active_;
  std::vector<std::vector<OffloadedTensor*>> blocks_{1};
};

// A tensor held outside of the device. When fetched ahead, one copy serves all its readers.
class OffloadedTensor : public StoredTensor {
 public:
  OffloadedTensor(std::shared_ptr<FetchAhead> ahead, const at::Tensor& dense);
  ~OffloadedTensor() override;

  void read(const at::Tensor& to) override {
    start(to);
    finish();
  }
  at::Tensor fetched() override;
  void fetch();

 private:
  // Starts the copy into `to`, which is dense.
  virtual void start(const at::Tensor& to) = 0;
  // Makes work queued on the current stream from now on wait for the copy.
  virtual void finish() = 0;

  std::shared_ptr<FetchAhead> ahead_;
  c10::Device device_;
  int64_t bytes_;
  size_t block_ = 0;
  at::Tensor memory_;  // the fetched copy
  int64_t version_ = 0;
};

}  // namespace moelab
