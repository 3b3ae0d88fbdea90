#include "train/memory/split.h"

#include <algorithm>

namespace moelab {
namespace {

Split of_rows(int64_t rows, int64_t micro_batch) { return {micro_batch, rows / micro_batch}; }

}  // namespace

std::string split_text(const Split& split) {
  return std::to_string(split.micro_batch) + " x " + std::to_string(split.accumulation);
}

std::optional<Split> halved(const Split& split) {
  for (int64_t n = split.micro_batch / 2; n >= 1; --n) {
    if (split.rows() % n == 0) return of_rows(split.rows(), n);
  }
  return std::nullopt;
}

std::optional<Split> doubled(const Split& split, int64_t max) {
  const int64_t rows = split.rows(), most = std::min(max, rows);
  for (int64_t n = 2 * split.micro_batch; n <= most; ++n) {
    if (rows % n == 0) return of_rows(rows, n);
  }
  for (int64_t n = most; n > split.micro_batch; --n) {
    if (rows % n == 0) return of_rows(rows, n);
  }
  return std::nullopt;
}

}  // namespace moelab
