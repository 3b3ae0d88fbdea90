#pragma once
#include <vector>

#include "train/settings/facts/technique.h"

namespace moelab {

// Rows of the technique table about how a run reads data, writes texts, and takes and gives back memory.
std::vector<Technique> run_rows();

// Whether a step's bytes or its arithmetic follow from the technique; not if it is about reading ahead, texts
// or the allocator alone.
bool changes_a_step(const Technique& technique);

}  // namespace moelab
