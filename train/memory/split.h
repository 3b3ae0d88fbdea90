#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace moelab {

// How the rows of an optimizer step are cut into forward passes. Which way changes nothing but rounding.
struct Split {
  int64_t micro_batch = 1;   // rows a forward pass
  int64_t accumulation = 1;  // passes

  int64_t rows() const { return micro_batch * accumulation; }
  friend bool operator==(const Split&, const Split&) = default;
};

// "4 x 2": micro-batch times accumulation.
std::string split_text(const Split& split);

// The same rows in micro-batches of at most half the size: the largest divisor of the rows that is; 8 x 1 to
// 4 x 2, 3 x 1 to 1 x 3, 5 x 2 to 2 x 5. None from a micro-batch of 1.
std::optional<Split> halved(const Split& split);

// The same rows in micro-batches of at least twice the size, but at most `max`: the smallest such divisor of
// the rows, or the largest up to `max` where a doubling would pass it. None where nothing is larger.
std::optional<Split> doubled(const Split& split, int64_t max);

}  // namespace moelab
