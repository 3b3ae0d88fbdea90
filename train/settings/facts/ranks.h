#pragma once
#include <vector>

#include "train/settings/facts/technique.h"

namespace moelab {

// Rows of the technique table: what data-parallel ranks divide among them. Each names the fewest ranks that
// can divide anything, two; a run may have more.
std::vector<Technique> rank_rows();

}  // namespace moelab
