#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "train/config/facts/technique.h"

namespace moelab {

// The one table of techniques: `moelab techniques`, the harness and the reports read it. The first row is the
// baseline, the naive way to train, which the others are held against.
const std::vector<Technique>& techniques();

// Null when there is none of that name.
const Technique* find_technique(std::string_view name);

// The settings of the baseline as the technique changes them, each key once.
Preset::Pairs over_baseline(const Technique& technique);

// Pairs with `changes` made to them: a known key gets the new value, others follow at the end.
Preset::Pairs changed(Preset::Pairs pairs, const Preset::Pairs& changes);

// The table for people, and as JSON of schema 1 (techniques with name, title, settings, trades, bytes,
// excludes, parts, claims).
std::string techniques_text();
std::string techniques_json();

}  // namespace moelab
