#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "kernels/memory/copy_stream.h"

namespace moelab {

// Copies of tensors between a device and memory of the host, Home::host. On CUDA that memory is pinned, and
// each copy runs behind what was queued on the current stream before it, beside what is queued after; on the
// CPU and on meta it is done at once.
class HostCopy {
 public:
  explicit HostCopy(c10::Device device) : copies_(device) {}

  // Memory of the host for a tensor like this, to be kept; dense, row-major.
  at::Tensor like(const at::Tensor& tensor, c10::ScalarType type) const;
  // The same for a moment: LibTorch keeps and hands out again what it has pinned.
  at::Tensor passing(const at::Tensor& tensor, c10::ScalarType type) const;

  // Starts a copy; `to` must stay as it is until finish() or join(), and so must `from` on the host. What the
  // device frees meanwhile is not used again before that.
  void start(const at::Tensor& from, const at::Tensor& to);
  // Returns once everything started is done.
  void finish();
  // What is queued on the current stream from now on waits for everything started.
  void join();

 private:
  CopyStream copies_;
};

}  // namespace moelab
