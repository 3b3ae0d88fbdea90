#include "train/optim/host_copy.h"

#include <ATen/ATen.h>

#include "kernels/memory/ledger.h"
#ifdef MOELAB_WITH_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace moelab {

#ifdef MOELAB_WITH_CUDA
struct HostCopy::Stream {
  explicit Stream(c10::Device device) : copies(c10::cuda::getStreamFromPool(false, device.index())) {}

  void copy(const at::Tensor& from, const at::Tensor& to) {
    at::cuda::CUDAEvent before;
    before.record(c10::cuda::getCurrentCUDAStream(copies.device_index()));
    before.block(copies);
    const c10::cuda::CUDAStreamGuard guard(copies);
    to.copy_(from, /*non_blocking=*/true);
    for (const at::Tensor& tensor : {from, to}) {  // freed by then, its memory waits for the copy
      if (tensor.is_cuda())
        c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), copies);
    }
  }

  c10::cuda::CUDAStream copies;
};
#else
struct HostCopy::Stream {};
#endif

HostCopy::HostCopy(c10::Device device) : device_(device) {
#ifdef MOELAB_WITH_CUDA
  if (device_.is_cuda()) stream_ = std::make_unique<Stream>(device_);
#endif
}

HostCopy::~HostCopy() = default;
HostCopy::HostCopy(HostCopy&&) noexcept = default;

at::Tensor HostCopy::like(const at::Tensor& tensor, c10::ScalarType type) const {
  const HomeScope outside(Home::host);
  const auto options = at::TensorOptions().dtype(type).device(device_.is_meta() ? c10::kMeta : c10::kCPU);
  return at::empty(tensor.sizes(), options.pinned_memory(device_.is_cuda()));
}

void HostCopy::start(const at::Tensor& from, const at::Tensor& to) {
  const at::NoGradGuard no_grad;
  const HomeScope outside(Home::host);
#ifdef MOELAB_WITH_CUDA
  if (stream_) return stream_->copy(from, to);
#endif
  to.copy_(from);
}

void HostCopy::finish() {
#ifdef MOELAB_WITH_CUDA
  if (stream_) stream_->copies.synchronize();
#endif
}

}  // namespace moelab
