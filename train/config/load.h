#pragma once
#include <string>
#include <vector>

#include "train/config/settings.h"

namespace moelab {

// Where the settings of a run come from, in the order in which they are taken; later wins.
struct Sources {
  std::string config = {};                  // a named model or a YAML file; empty: moe-micro
  std::string preset = {};                  // a GPU size; empty: none
  std::vector<std::string> overrides = {};  // key=value
  std::string device = {};                  // short for run.device=; empty: not given
  std::string scale = {};                   // short for run.scale=, also as 1/64; empty: not given
};

// Reads, scales (see miniature), resolves and validates. Within one source model.preset and run.preset come
// first and the source's other keys change them, in whatever order they are written. Values are given at full
// size when run.scale is not 1. Throws UserError: one line with the place (FILE:LINE or "command line"), the
// key, and what would be right.
Settings load_settings(const Sources& sources);

}  // namespace moelab
