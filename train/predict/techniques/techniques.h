#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/settings/facts/technique.h"

namespace moelab {

// The technique table, read by `moelab techniques`, the harness and the reports. The first row is the
// baseline, the naive way to train, with which the others are compared.
const std::vector<Technique>& techniques();

// Null if no technique has that name.
const Technique* find_technique(std::string_view name);

// The ranks that a run of this row has: its parallel.data, or 1.
int64_t ranks_of(const Technique& technique);

// Whether the machine decides this setting, and a row only needs some value: the folder on the drive, the
// number of ranks.
bool is_of_machine(std::string_view key);

// `pairs` with `changes` made: existing keys get the new value, others are appended.
Preset::Pairs changed(Preset::Pairs pairs, const Preset::Pairs& changes);

// The table as text, and as JSON of schema 1 (techniques with name, title, settings, ranks, trades, bytes,
// excludes, parts, claims).
std::string techniques_text();
std::string techniques_json();

}  // namespace moelab
