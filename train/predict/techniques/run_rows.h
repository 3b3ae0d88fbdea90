#pragma once
#include <string_view>
#include <vector>

#include "train/settings/facts/technique.h"

namespace moelab {

// Rows of the technique table about how a run reads data, writes texts, and takes and gives back memory.
std::vector<Technique> run_rows();

// Whether a step's bytes or its arithmetic follow from the technique; not if it is about what rows are read,
// reading ahead, texts, the reference model or the allocator alone.
bool changes_a_step(const Technique& technique);

inline constexpr std::string_view kPackedTokens = "train.tokens_per_device";
// Whether the technique packs documents into one row of kPackedTokens.
bool packs(const Technique& technique);

}  // namespace moelab
