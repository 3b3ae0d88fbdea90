#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <vector>

namespace moelab::bench {

// Seconds that f() takes with cold caches. On the CPU only the cores' private caches are cleared. The
// shared cache keeps its contents: in a training step, too, operands were just written. On CUDA the L2 cache
// is cleared and the time is the device's, between two events; f() is queued behind a pause, so that
// launching it is not counted.
double seconds_of(c10::Device device, const std::function<void()>& f);

// The q-quantile of `sorted`, which must not be empty: the element at the nearest rank.
double quantile(const std::vector<double>& sorted, double q);

}  // namespace moelab::bench
