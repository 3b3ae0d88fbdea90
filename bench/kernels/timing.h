#pragma once
#include <chrono>
#include <vector>

namespace moelab::bench {

// Each thread reads twice the size of a core's own cache, so that what is timed next finds nothing there. The
// shared cache is left as it is: in a training step, too, the operands were just written.
void clear_private_caches();

// Seconds that f() takes from there on.
template <class F>
double seconds_of(const F& f) {
  clear_private_caches();
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The value that a share q of `sorted`, at least one, does not pass.
double quantile(const std::vector<double>& sorted, double q);

}  // namespace moelab::bench
