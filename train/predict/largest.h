#pragma once
#include <cstdint>
#include <functional>
#include <optional>

namespace moelab {

// The largest count from 1 to `most` that fits; 0: none does. `share(count)` is what a count needs of what
// there is: at most 1 for what fits, none where the count is invalid; larger counts never need less. The
// search tries `guess` first, then where a line through what it knows reaches 1, and bisects (or doubles)
// where such guesses gain little: what grows almost linearly costs few calls.
int64_t largest_fitting(int64_t guess, int64_t most,
                        const std::function<std::optional<double>(int64_t)>& share);

}  // namespace moelab
