#include "train/predict/largest.h"

#include <algorithm>

namespace moelab {

int64_t largest_fitting(int64_t guess, int64_t most, const std::function<bool(int64_t)>& fits) {
  int64_t low = 0, high = most + 1;  // the largest count known to fit, the smallest known not to
  int64_t at = std::clamp<int64_t>(guess, 1, most);
  for (int64_t step = 1; high - low > 1; step *= 2) {
    (fits(at) ? low : high) = at;
    if (high > most)
      at = std::min(low + step, most);
    else if (low == 0)
      at = std::max<int64_t>(high - step, 1);
    else
      at = low + (high - low) / 2;
  }
  return low;
}

}  // namespace moelab
