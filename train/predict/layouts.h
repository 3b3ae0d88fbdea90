#pragma once
#include <cstdint>
#include <vector>

#include "train/predict/techniques/combinations.h"

namespace moelab {

// Every way to lay out a run over `ranks` ranks that the cost model knows: the settings of each, all of the
// same keys. None for one rank.
std::vector<Changes> rank_layouts(int64_t ranks);

}  // namespace moelab
