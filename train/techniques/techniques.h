#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "train/presets/presets.h"

namespace moelab {

// A named set of settings that trades speed, or exactness, for memory.
struct Technique {
  std::string_view name;
  std::string_view title;
  Preset::Pairs settings;                // what it changes in the baseline's settings
  std::string_view trades;               // one sentence
  std::string_view bytes;                // what it takes or saves, in the letters of techniques_text()
  std::vector<std::string_view> claims;  // ids in bench/tradeoff/claims.yaml
  std::vector<std::string_view> parts =
      {};  // the techniques that it puts together; empty: it is a single one
};

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
