#pragma once
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "train/activations/tensor_store.h"
#include "train/io/wait_clock.h"

namespace moelab {

class OffloadedTensor;

// Tensors held outside of the device, grouped by the model block that stored them. Backward reads the blocks
// from last to first, so the first read of a block's tensor starts fetching all tensors of that block and of
// the one before it. The last block's tensors stay on the device, because backward reads them at once.
//
// In forward, tensors on their way out of the device wait in a ring of kWaiting. It bounds the memory that
// they take, however slow the copies are, and is the same in a dry run.
//
// Active on CUDA, where copies run concurrently with other work. When inactive, each read waits for its own
// copy, and no tensor stays.
class FetchAhead {
 public:
  explicit FetchAhead(bool active) : active_(active) {}
  bool active() const { return active_; }
  // Time in which threads of the step have stood still for copies.
  WaitClock& waits() { return waits_; }

  // Tensors stored from now on belong to the next block, which may be the last.
  void begin_block(bool last);
  // Whether tensors stored now stay on the device.
  bool keeps() const { return keeps_; }

  // Holds `dense`, whose copy has been started, until kWaiting more tensors are stored or backward begins.
  // `arrive` waits for the copy: on CUDA, it makes later work on the current stream wait.
  static constexpr size_t kWaiting = 4;
  void hold(at::Tensor dense, std::function<void()> arrive);

  // Adds `tensor` to the current block and returns the block's index.
  size_t add(OffloadedTensor& tensor);
  void remove(OffloadedTensor& tensor, size_t block);
  void want(size_t block);

 private:
  struct Waiting {
    at::Tensor dense;  // undefined: one that stays
    std::function<void()> arrive;
  };
  void let_go(size_t left);

  bool active_, keeps_ = false;
  std::vector<std::vector<OffloadedTensor*>> blocks_{1};
  std::deque<Waiting> waiting_;  // oldest first
  WaitClock waits_;
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

 protected:
  // `memory`: the elements as bytes, on the device.
  void have(const at::Tensor& memory);

 private:
  // Starts the copy into `to`, which is dense.
  virtual void start(const at::Tensor& to) = 0;
  // Makes work queued on the current stream from now on wait for the copy.
  virtual void finish() = 0;

  std::shared_ptr<FetchAhead> ahead_;
  c10::Device device_;
  int64_t bytes_;
  size_t block_ = 0;
  at::Tensor memory_;  // the fetched copy, or what stayed
  int64_t version_ = 0;
};

// A tensor that stays on the device, because its block is the last.
class KeptTensor : public OffloadedTensor {
 public:
  KeptTensor(const std::shared_ptr<FetchAhead>& ahead, const at::Tensor& dense);

 private:
  void start(const at::Tensor& to) override;
  void finish() override {}

  at::Tensor bytes_;
};

}  // namespace moelab
