#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "train/settings/presets/presets.h"

namespace moelab {

// A named set of settings that trades speed or exactness for memory: a row of the technique table.
struct Technique {
  std::string_view name;
  std::string_view title;
  Preset::Pairs settings;                    // changes to the baseline's settings
  std::string_view trades;                   // one sentence
  std::string bytes;                         // what it takes or saves, in the symbols of techniques_text()
  std::vector<std::string_view> claims;      // ids in train/predict/techniques/claims.yaml
  std::vector<std::string_view> parts = {};  // the techniques that it combines; empty: it is a single one
};

}  // namespace moelab
