#include "train/parallel/parts.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace moelab {

int64_t Parts::row_elements() const {
  return std::accumulate(cut.shape.begin() + 1, cut.shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> Parts::elements() const {
  std::vector<int64_t> elements;
  for (int64_t r = 0; r < ranks(); ++r) elements.push_back(rows(r) * row_elements());
  return elements;
}

Parts parts_of(const Cut& cut, int64_t row, int64_t ranks, int64_t index) {
  Parts parts{cut, {0}};
  const int64_t rows = cut.shape.front(), width = parts.row_elements(),
                unit = std::lcm(cut.align * width, row) / width,  // rows of the smallest part
      units = (rows + unit - 1) / unit;
  for (int64_t r = 1; r < ranks; ++r)
    parts.starts.push_back(std::min(rows, (r * units + index % ranks) / ranks * unit));
  parts.starts.push_back(rows);
  return parts;
}

}  // namespace moelab
