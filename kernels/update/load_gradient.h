#pragma once
#include "kernels/vector/vec.h"

#include "kernels/update/gradient_bound.h"

namespace moelab {

// The first `count` gradient elements at p as update rules use them: times `scale`, with magnitudes of at
// most kLargestGradient. An element that is not finite becomes NaN.
template <class Gradient>
Vec load_gradient(const Gradient* p, int64_t count, float scale) {
  const Vec stored = load_float(p, count), zero_or_nan = stored - stored;
  return at::vec::clamp(stored * Vec(scale), Vec(-kLargestGradient), Vec(kLargestGradient)) + zero_or_nan;
}

}  // namespace moelab
