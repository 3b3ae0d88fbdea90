#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace moelab {

// Device work that runs repeatedly, always the same on the same memory. On CUDA its launches are captured
// once in a graph and then replayed as one (at::cuda::CUDAGraph), on a stream of its own, ordered after
// earlier and before later work on the current stream. Elsewhere the work simply runs each time.
class StepGraph {
 public:
  explicit StepGraph(c10::Device device);
  // Waits for the device.
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Runs `work`. The first times it is launched, so that everything made only once is made (kernels loaded,
  // tables, workspaces); then it is captured and the capture replayed; after that it is only replayed. Inputs
  // and outputs must be in tensors that keep their addresses, and nothing in `work` may wait for the device.
  // Tensors that `work` makes and that outlive it keep their addresses in the graph's memory until forget().
  // Throws what `work` throws, such as c10::OutOfMemoryError; if that happens during capture, nothing has
  // been computed.
  void run(const std::function<void()>& work);

  // Makes the next run start from the beginning, because shapes or addresses have changed or `work` has
  // thrown. Frees the graph's memory, after waiting for the device.
  void forget();

  // True while `work` is only being captured, not executed.
  bool capturing() const { return capturing_; }

 private:
  struct Cuda;
  void launch(const std::function<void()>& work);
  void capture(const std::function<void()>& work);

  static constexpr int kLaunches = 2;  // the second launch sees what the first left
  c10::Device device_;
  std::unique_ptr<Cuda> cuda_;  // null except on CUDA
  int launches_ = 0;
  bool capturing_ = false;
};

}  // namespace moelab
