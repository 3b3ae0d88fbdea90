#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace moelab {

// Work of the device that is launched over and over, always the same on the same memory. On CUDA its launches
// are captured once, in a graph, and from then on replayed as one (at::cuda::CUDAGraph), on a stream of this
// one's own, between what the current stream did before and does after. Elsewhere the work is done each time.
class StepGraph {
 public:
  explicit StepGraph(c10::Device device);
  // Waits for the device.
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Does `work`: the first times by launching it, so that whatever is made once is made (kernels loaded,
  // tables, workspaces), then once by capturing it and replaying what was captured, from then on by replaying
  // alone. What it takes in and leaves behind has to lie in tensors that keep their places, and nothing in it
  // may wait for the device; tensors that it makes and that outlive it keep their places in the graph's
  // memory until forget(). Throws what `work` throws, such as c10::OutOfMemoryError; while it is being
  // captured, nothing has been done then.
  void run(const std::function<void()>& work);

  // The next run begins anew: shapes or places have changed, or `work` has thrown. Gives the graph's memory
  // back, once the device is done.
  void forget();

  // Whether `work` is being captured at the moment, not done.
  bool capturing() const { return capturing_; }

 private:
  struct Cuda;
  void launch(const std::function<void()>& work);
  void capture(const std::function<void()>& work);

  static constexpr int kLaunches = 2;  // the second finds what the first has left
  c10::Device device_;
  std::unique_ptr<Cuda> cuda_;  // null but on CUDA
  int launches_ = 0;
  bool capturing_ = false;
};

}  // namespace moelab
