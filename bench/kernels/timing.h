#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <vector>

namespace moelab::bench {

// Seconds that f() takes where nothing of it is in a cache. On the CPU that is the cores' own cache; the
// shared one is left as it is: in a training step, too, the operands were just written. On CUDA it is the
// second-level cache, and the seconds are the device's between two events: f() is queued behind a pause, so
// that launching it is not counted.
double seconds_of(c10::Device device, const std::function<void()>& f);

// The value that a share q of `sorted`, at least one, does not pass.
double quantile(const std::vector<double>& sorted, double q);

}  // namespace moelab::bench
