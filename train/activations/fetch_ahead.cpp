#include "train/activations/fetch_ahead.h"

#include <ATen/ATen.h>

namespace moelab {
namespace {

// The elements of `dense`, which has no gaps in memory.
at::Tensor bytes_of(const at::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1}).view(at::kByte);
}

}  // namespace

void FetchAhead::begin_block(bool last) {
  if (!blocks_.back().empty()) blocks_.emplace_back();
  keeps_ = active_ && last;
}

void FetchAhead::hold(at::Tensor dense, std::function<void()> arrive) {
  if (!active_) return;
  waiting_.push_back({std::move(dense), std::move(arrive)});
  let_go(kWaiting);
}

void FetchAhead::let_go(size_t left) {
  while (waiting_.size() > left) {
    if (waiting_.front().dense.defined()) waiting_.front().arrive();
    waiting_.pop_front();
  }
}

size_t FetchAhead::add(OffloadedTensor& tensor) {
  blocks_.back().push_back(&tensor);
  return blocks_.size() - 1;
}

void FetchAhead::remove(OffloadedTensor& tensor, size_t block) {
  std::erase(blocks_[block], &tensor);
  while (blocks_.size() > 1 && blocks_.back().empty()) blocks_.pop_back();
  if (!blocks_.front().empty() || blocks_.size() > 1) return;
  keeps_ = false;
  let_go(0);
}

void FetchAhead::want(size_t block) {
  let_go(0);
  for (OffloadedTensor* tensor : blocks_[block]) tensor->fetch();
  if (block == 0) return;
  for (OffloadedTensor* tensor : blocks_[block - 1]) tensor->fetch();
}

OffloadedTensor::OffloadedTensor(std::shared_ptr<FetchAhead> ahead, const at::Tensor& dense)
    : ahead_(std::move(ahead)), device_(dense.device()), bytes_(static_cast<int64_t>(dense.nbytes())) {
  block_ = ahead_->add(*this);
}

OffloadedTensor::~OffloadedTensor() { ahead_->remove(*this, block_); }

void OffloadedTensor::fetch() {
  if (memory_.defined()) return;
  const at::Tensor memory = at::empty({bytes_}, at::TensorOptions().dtype(at::kByte).device(device_));
  start(memory);
  have(memory);
}

void OffloadedTensor::have(const at::Tensor& memory) {
  memory_ = memory;
  version_ = memory._version();
}

at::Tensor OffloadedTensor::fetched() {
  if (!ahead_->active()) return {};
  ahead_->want(block_);
  finish();
  TORCH_CHECK(memory_._version() == version_, "a tensor that autograd saved was changed in place");
  return memory_;
}

KeptTensor::KeptTensor(const std::shared_ptr<FetchAhead>& ahead, const at::Tensor& dense)
    : OffloadedTensor(ahead, dense), bytes_(bytes_of(dense)) {
  have(bytes_);
  ahead->hold({}, {});  // it takes a place in the ring, so that the tensors before it leave
}

void KeptTensor::start(const at::Tensor& to) { bytes_of(to).copy_(bytes_); }

}  // namespace moelab
