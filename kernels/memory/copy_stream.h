#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace moelab {

// Copies between a device and the host, in order, while the device computes. On CUDA they have their own
// stream: the device waits for them, the calling thread only in synchronize(). On the CPU, where a memory
// budget plays the device, copies are done at once and there is nothing to wait for. On meta nothing is
// copied. Every member may be called from any thread.
class CopyStream {
 public:
  explicit CopyStream(c10::Device device);
  ~CopyStream();
  CopyStream(CopyStream&&) noexcept;

  c10::Device device() const { return device_; }

  // Later copies start once what is queued on the current stream now is done.
  void follow();
  // Host memory has to be pinned (host_memory()); otherwise the calling thread waits.
  void copy(void* to, const void* from, int64_t bytes);
  // As above for tensors, whose types may differ.
  void copy(const at::Tensor& to, const at::Tensor& from);
  // Calls `work` while the copies' stream is the current one of this thread: what it starts on the device
  // takes its turn among the copies.
  void in_turn(const std::function<void()>& work);
  // Keeps device memory that the copies so far use: if it is freed, it is not reused before they are done.
  void keep(const at::Tensor& tensor);

  // A point in the order of the copies, after all that were started before it. Null except on CUDA.
  struct Event;
  using Mark = std::shared_ptr<Event>;
  Mark mark();
  // What is queued on the current stream from now on waits for that point.
  void wait(const Mark& mark);
  void join() { wait(mark()); }
  // Returns once all copies are done.
  void synchronize();

 private:
  struct Stream;
  c10::Device device_;
  std::unique_ptr<Stream> stream_;  // null except on CUDA
};

}  // namespace moelab
