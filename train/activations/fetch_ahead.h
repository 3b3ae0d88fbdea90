#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "train/activations/tensor_store.h"

namespace moelab {

class AwayTensor;

// What lies outside of the device, by the block of the model that stored it. Backward wants the blocks from
// the last to the first: with the first tensor of a block that it wants, all of that block's and of the one
// before begin to come.
//
// Worth it where copies go on beside other work: on CUDA. Without it, each who reads a tensor waits for a
// copy of their own.
class FetchAhead {
 public:
  explicit FetchAhead(bool active) : active_(active) {}
  bool active() const { return active_; }

  // What is stored from now on belongs to the next block.
  void begin_block();

  // The block that `tensor` now belongs to.
  size_t add(AwayTensor& tensor);
  void remove(AwayTensor& tensor, size_t block);
  void want(size_t block);

 private:
  bool active_;
  std::vector<std::vector<AwayTensor*>> blocks_{1};
};

// A tensor outside of the device. Fetched ahead, it is there once for all who read it.
class AwayTensor : public StoredTensor {
 public:
  AwayTensor(std::shared_ptr<FetchAhead> ahead, const at::Tensor& dense);
  ~AwayTensor() override;

  void read(const at::Tensor& to) override {
    start(to);
    finish();
  }
  at::Tensor fetched() override;
  void fetch();

 private:
  // Begins to copy into `to`, which is dense.
  virtual void start(const at::Tensor& to) = 0;
  // What is queued on the current stream from now on finds the tensor there.
  virtual void finish() = 0;

  std::shared_ptr<FetchAhead> ahead_;
  c10::Device device_;
  int64_t bytes_;
  size_t block_ = 0;
  at::Tensor memory_;  // what was fetched
  int64_t version_ = 0;
};

}  // namespace moelab
