#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>

namespace moelab {

// Copies between a device and memory of the host, Home::host. On CUDA that memory is pinned and copies run on
// a stream of their own, each behind what was queued on the current stream before it, beside what is queued
// after; on the CPU and on meta they are done at once.
class HostCopy {
 public:
  explicit HostCopy(c10::Device device);
  ~HostCopy();
  HostCopy(HostCopy&&) noexcept;

  // Memory of the host for a tensor like this; dense, row-major.
  at::Tensor like(const at::Tensor& tensor, c10::ScalarType type) const;
  // Starts a copy; both tensors must stay as they are until finish().
  void start(const at::Tensor& from, const at::Tensor& to);
  // Returns once everything started is done, for the host and for the device's current stream.
  void finish();

 private:
  struct Stream;  // CUDA's
  c10::Device device_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace moelab
