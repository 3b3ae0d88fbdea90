#include "kernels/operator/gpu_timer.h"

#include <c10/cuda/CUDAEvent.h>

#include <algorithm>
#include <array>

namespace moelab {

double gpu_milliseconds_of(const std::function<void()>& f) {
  for (int i = 0; i < 2; ++i) f();
  std::array<double, 9> samples{};
  for (double& sample : samples) {
    c10::cuda::CUDAEvent start(cudaEventDefault), end(cudaEventDefault);
    start.record();
    f();
    end.record();
    end.synchronize();
    sample = start.elapsed_time(end);
  }
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  return samples[samples.size() / 2];
}

}  // namespace moelab
