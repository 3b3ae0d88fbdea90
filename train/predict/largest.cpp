#include "train/predict/largest.h"

#include <algorithm>

namespace moelab {
namespace {

struct Point {
  int64_t count;
  double excess;  // of the share above 1
};

// Where the line through two points has no excess, from `first` to `last`; `last` where it does not rise.
int64_t zero_of_line(const Point& a, const Point& b, int64_t first, int64_t last) {
  const double rise = b.excess - a.excess, run = static_cast<double>(b.count - a.count);
  if (rise <= 0) return last;
  const double zero = static_cast<double>(a.count) - a.excess * run / rise;
  return static_cast<int64_t>(std::clamp(zero, static_cast<double>(first), static_cast<double>(last)));
}

}  // namespace

int64_t largest_fitting(int64_t guess, int64_t most,
                        const std::function<std::optional<double>(int64_t)>& share) {
  Point low{0, -1}, below = low;  // the largest known to fit, for nothing needs nothing; the one before it
  std::optional<Point> high;      // the smallest known not to fit
  int64_t at = std::clamp<int64_t>(guess, 1, most);
  for (int64_t slow = 0;;) {
    const int64_t before = high ? high->count - low.count : low.count;
    const Point now{at, share(at).value_or(2) - 1};
    if (now.excess > 0) {
      high = now;
    } else {
      below = low;
      low = now;
    }
    const int64_t first = low.count + 1, last = high ? high->count - 1 : most;
    if (first > last) return low.count;
    const bool quick = high ? 2 * (high->count - low.count) <= before : low.count >= 2 * before;
    slow = quick ? 0 : slow + 1;
    const Point from = high ? low : below, to = high ? *high : low;
    at = zero_of_line(from, to, first, last);
    if (slow > 1) at = high ? first + (last - first) / 2 : std::min(2 * low.count, last);
  }
}

}  // namespace moelab
