#pragma once
#include <functional>

namespace moelab::bench {

// seconds_of (bench/kernels/timing.h) on CUDA.
double gpu_seconds_of(const std::function<void()>& f);

}  // namespace moelab::bench
