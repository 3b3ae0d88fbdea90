#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace moelab {

// How the rows of an optimizer step are split into forward passes. The split changes nothing but rounding.
struct Split {
  int64_t micro_batch = 1;   // rows per forward pass
  int64_t accumulation = 1;  // passes

  int64_t rows() const { return micro_batch * accumulation; }
  friend bool operator==(const Split&, const Split&) = default;
};

// "4 x 2": micro-batch times accumulation.
std::string split_text(const Split& split);

// The same rows in micro-batches of at most half the size: the largest divisor of the rows up to that. 8 x 1
// to 4 x 2, 3 x 1 to 1 x 3, 5 x 2 to 2 x 5. None for a micro-batch of 1.
std::optional<Split> halved(const Split& split);

// The same rows in micro-batches of at least twice the size, but at most `max`: the smallest such divisor of
// the rows; if there is none, the largest divisor up to `max`. None if no divisor is larger.
std::optional<Split> doubled(const Split& split, int64_t max);

}  // namespace moelab
