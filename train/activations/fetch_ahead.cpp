#include "train/activations/fetch_ahead.h"

#include <ATen/ATen.h>

namespace moelab {

void FetchAhead::begin_block() {
  if (!blocks_.back().empty()) blocks_.emplace_back();
}

size_t FetchAhead::add(OffloadedTensor& tensor) {
  blocks_.back().push_back(&tensor);
  return blocks_.size() - 1;
}

void FetchAhead::remove(OffloadedTensor& tensor, size_t block) {
  std::erase(blocks_[block], &tensor);
  while (blocks_.size() > 1 && blocks_.back().empty()) blocks_.pop_back();
}

void FetchAhead::want(size_t block) {
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
  memory_ = memory;
  version_ = memory._version();  // 0, or more if deterministic algorithms made LibTorch fill it
}

at::Tensor OffloadedTensor::fetched() {
  if (!ahead_->active()) return {};
  ahead_->want(block_);
  finish();
  TORCH_CHECK(memory_._version() == version_, "a tensor that autograd saved was changed in place");
  return memory_;
}

}  // namespace moelab
