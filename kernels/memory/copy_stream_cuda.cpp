#include "kernels/memory/copy_stream.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>

namespace moelab {

struct CopyStream::Stream {
  c10::cuda::CUDAStream copies;
};
struct CopyStream::Event {
  c10::cuda::CUDAEvent event;
};

CopyStream::CopyStream(c10::Device device) : device_(device) {
  if (device_.is_cuda())
    stream_ = std::make_unique<Stream>(Stream{c10::cuda::getStreamFromPool(false, device_.index())});
}

CopyStream::~CopyStream() = default;
CopyStream::CopyStream(CopyStream&&) noexcept = default;

void CopyStream::follow() {
  if (!stream_) return;
  c10::cuda::CUDAEvent now;
  now.record(c10::cuda::getCurrentCUDAStream(stream_->copies.device_index()));
  now.block(stream_->copies);
}

void CopyStream::copy(void* to, const void* from, int64_t bytes) {
  if (device_.is_cpu() && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));  // no bytes: null
  if (!stream_) return;
  const c10::cuda::CUDAGuard guard(device_);
  C10_CUDA_CHECK(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_->copies.stream()));
}

void CopyStream::copy(const at::Tensor& to, const at::Tensor& from) {
  if (!stream_) {
    to.copy_(from);
    return;
  }
  const c10::cuda::CUDAStreamGuard guard(stream_->copies);
  to.copy_(from, /*non_blocking=*/true);
}

void CopyStream::in_turn(const std::function<void()>& work) {
  if (!stream_) return work();
  const c10::cuda::CUDAStreamGuard guard(stream_->copies);
  work();
}

void CopyStream::keep(const at::Tensor& tensor) {
  if (stream_ && tensor.is_cuda())
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), stream_->copies);
}

CopyStream::Mark CopyStream::mark() {
  if (!stream_) return nullptr;
  auto mark = std::make_shared<Event>();
  mark->event.record(stream_->copies);
  return mark;
}

void CopyStream::wait(const Mark& mark) {
  if (mark) mark->event.block(c10::cuda::getCurrentCUDAStream(stream_->copies.device_index()));
}

void CopyStream::synchronize() {
  if (stream_) stream_->copies.synchronize();
}

}  // namespace moelab
