#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

namespace moelab {

// Copies between a device and the host, in their order, beside what the device computes. On CUDA they have a
// stream of their own and it is the device that waits; the calling thread does in synchronize() alone. On the
// CPU, whose budget plays the device, they are done at once, and there is nothing to wait for; on meta,
// nothing is copied. Every member may be called from any thread.
class CopyStream {
 public:
  explicit CopyStream(c10::Device device);
  ~CopyStream();
  CopyStream(CopyStream&&) noexcept;

  c10::Device device() const { return device_; }

  // Copies from now on begin once what is queued on the current stream is done.
  void follow();
  // Memory of the host is to be pinned (host_memory()), or the calling thread does wait.
  void copy(void* to, const void* from, int64_t bytes);
  // The same of tensors, whose types may differ.
  void copy(const at::Tensor& to, const at::Tensor& from);
  // Memory of the device that the copies so far use: once freed, it is not used again before they are done.
  void keep(const at::Tensor& tensor);

  // A moment in the order of the copies: all that were started until then. Null but on CUDA.
  struct Event;
  using Mark = std::shared_ptr<Event>;
  Mark mark();
  // What is queued on the current stream from now on waits for that moment.
  void wait(const Mark& mark);
  void join() { wait(mark()); }
  // Returns once all copies are done.
  void synchronize();

 private:
  struct Stream;
  c10::Device device_;
  std::unique_ptr<Stream> stream_;  // null but on CUDA
};

}  // namespace moelab
