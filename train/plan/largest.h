#pragma once
#include <cstdint>
#include <functional>

namespace moelab {

// The largest count from 1 to `most` that fits, 0: none does. `fits` is true up to some count and false from
// there on. Asked near `guess` first, then in doubling steps away from it, then by bisection: a good guess
// costs two questions.
int64_t largest_fitting(int64_t guess, int64_t most, const std::function<bool(int64_t)>& fits);

}  // namespace moelab
