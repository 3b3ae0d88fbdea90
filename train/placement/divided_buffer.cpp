#include "train/placement/divided_buffer.h"

#include <ATen/ATen.h>

#include <numeric>
#include <utility>

namespace moelab {
namespace {

// The bytes at `data`, which on meta is null, without taking memory.
at::Tensor bytes_at(void* data, int64_t bytes, c10::Device device) {
  c10::Storage storage(c10::Storage::use_byte_size_t{}, static_cast<size_t>(bytes),
                       c10::DataPtr(data, device));
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::computeDispatchKey(at::kByte, c10::kStrided, device)),
      caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({bytes});
  return tensor;
}

template <class T>
T* offset(T* bytes, int64_t count) {
  return bytes == nullptr ? nullptr : bytes + count;
}

}  // namespace

DividedBuffer::DividedBuffer(std::unique_ptr<OffloadBuffer> kept, std::vector<int64_t> bytes,
                             Communicator& ranks, c10::Device device)
    : kept_(std::move(kept)),
      bytes_(std::move(bytes)),
      ranks_(ranks),
      device_(device),
      first_(std::accumulate(bytes_.begin(), bytes_.begin() + ranks.rank(), int64_t{0})) {}

void DividedBuffer::read_own(void* to) {
  if (kept_) kept_->read(offset(static_cast<char*>(to), first_));
}

std::unique_ptr<Transfer> DividedBuffer::start_read(void* to) {
  read_own(to);
  const at::Tensor whole = bytes_at(to, std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0}), device_);
  return ranks_.gather(whole.narrow(0, first_, bytes_[ranks_.rank()]), whole, bytes_);
}

void DividedBuffer::write(const void* from) {
  if (kept_) kept_->write(offset(static_cast<const char*>(from), first_));
}

}  // namespace moelab
