#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "kernels/memory/copy_stream.h"
#include "train/io/wait_clock.h"

namespace moelab {

// Copies tensors between a device and host memory (Home::host). On CUDA that memory is pinned, and each copy
// runs after the work queued so far on the current stream and concurrently with later work. On the CPU and on
// meta a copy is done at once.
class HostCopy {
 public:
  explicit HostCopy(c10::Device device) : copies_(device) {}

  // New host memory of this tensor's shape, to be kept; dense, row-major, not yet filled.
  at::Tensor like(const at::Tensor& tensor, c10::ScalarType type) const;
  // As like(), for temporary use: LibTorch caches and reuses pinned memory.
  at::Tensor passing(const at::Tensor& tensor, c10::ScalarType type) const;

  // Starts a copy. Until finish() or join(), `to` must not change, nor may `from` if it is on the host.
  // Device memory freed meanwhile is not reused before that.
  void start(const at::Tensor& from, const at::Tensor& to);
  // Returns when all started copies are done.
  void finish();
  // Makes work queued on the current stream from now on wait for all started copies.
  void join();
  // How long the calling threads have stood still for copies: on CUDA in finish(), on the CPU in start().
  double waited_seconds() const { return waits_.seconds(); }

 private:
  CopyStream copies_;
  WaitClock waits_;
};

}  // namespace moelab
