#pragma once
#include <cstdint>
#include <vector>

#include "train/settings/facts/update_rule.h"

namespace moelab {

// How the elements of a weight are divided over the ranks that share its state (ZeRO: Rajbhandari 2020, arXiv
// 1910.02054): rank r owns the rows [starts[r], starts[r + 1]) of `cut`, which may be none. Parts end where
// the update rule allows a cut and where a row of the weight ends, and are not padded.
struct Parts {
  Cut cut;
  std::vector<int64_t> starts;  // one more than ranks

  int64_t ranks() const { return static_cast<int64_t>(starts.size()) - 1; }
  int64_t row_elements() const;  // of the cut
  int64_t rows(int64_t rank) const { return starts[rank + 1] - starts[rank]; }
  int64_t first_element(int64_t rank) const { return starts[rank] * row_elements(); }
  std::vector<int64_t> elements() const;  // of each rank
};

// `row`: elements of the weight's last axis. `index`: the weight's place in the model; weights that cannot be
// cut go to the ranks in turn.
Parts parts_of(const Cut& cut, int64_t row, int64_t ranks, int64_t index);

}  // namespace moelab
