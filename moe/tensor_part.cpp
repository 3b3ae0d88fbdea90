#include "moe/tensor_part.h"

#include <algorithm>
#include <numeric>

namespace moelab {
namespace {

int64_t product(std::vector<int64_t>::const_iterator begin, std::vector<int64_t>::const_iterator end) {
  return std::accumulate(begin, end, int64_t{1}, std::multiplies<>());
}

}  // namespace

int64_t TensorSlice::count() const {
  const auto add = [](int64_t sum, const Range& range) { return sum + range.count; };
  return std::accumulate(ranges.begin(), ranges.end(), int64_t{0}, add);
}

void for_each_run(const TensorPart& part, int64_t elements,
                  const std::function<void(int64_t first, int64_t count)>& run) {
  if (part.slice.whole()) return run(part.first, elements);
  const auto dim = part.shape.begin() + part.slice.dim;
  const int64_t inner = product(dim + 1, part.shape.end()), row = *dim * inner,
                sliced_row = part.slice.count() * inner;
  int64_t done = 0;
  Range pending;  // grows while the next run follows it
  for (int64_t outer = sliced_row > 0 ? part.first / sliced_row : 0; done < elements; ++outer) {
    int64_t begin = outer * sliced_row;  // of the range at work, in the slice
    for (const Range& range : part.slice.ranges) {
      const int64_t count = range.count * inner, from = std::max(part.first + done, begin),
                    to = std::min(part.first + elements, begin + count);
      if (from < to) {
        const int64_t first = outer * row + range.first * inner + from - begin;
        if (pending.first + pending.count == first) {
          pending.count += to - from;
        } else {
          if (pending.count > 0) run(pending.first, pending.count);
          pending = {first, to - from};
        }
        done += to - from;
      }
      begin += count;
    }
  }
  if (pending.count > 0) run(pending.first, pending.count);
}

}  // namespace moelab
