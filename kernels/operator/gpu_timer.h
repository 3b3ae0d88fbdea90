#pragma once
#include <functional>

namespace moelab {

// Milliseconds that the current GPU takes for what f() queues on the current stream, waits of the host
// included: the median of several calls after two that are not counted. Throws in a build without CUDA.
double gpu_milliseconds_of(const std::function<void()>& f);

}  // namespace moelab
