#pragma once
#include <cstdint>
#include <functional>

namespace moelab {

// The largest count from 1 to `most` that fits; 0: none does. `fits` must be true up to some count and false
// above. The search tries `guess` first, then doubling steps away from it, then bisects; a good guess costs
// two calls.
int64_t largest_fitting(int64_t guess, int64_t most, const std::function<bool(int64_t)>& fits);

}  // namespace moelab
