#pragma once
#include <functional>
#include <string>
#include <vector>

#include "train/config/settings.h"

namespace moelab {

// Where the settings of a run come from, in the order in which they are taken; later wins.
struct Sources {
  std::string config = {};  // a named model, a YAML file or a model's folder; empty: moe-micro
  std::string preset = {};  // a GPU size; empty: none
  std::vector<std::string> overrides = {};  // key=value; of two for one key the later wins
};

// Reads the settings for training the model in a folder. Throws UserError that starts with the folder.
using FolderReader = std::function<Settings(const std::string& folder)>;

// Reads, scales (see miniature), resolves and validates. Within one source model.preset and run.preset come
// first and the source's other keys change them, in whatever order they are written. Values are given at full
// size when run.scale is not 1; run.scale itself may be written as 1/64 in an override.
//
// A folder as `config` gives its model, attention and train.sequence. A folder in train.init gives the shape
// of its model, at the size that it has (run.scale is not applied to it), and its window of attention unless
// the user sets attention himself. What the user sets of model.* must agree with these folders. A file that
// sets both train.init and the whole model, as a run's config.yaml does, is believed: the folder may be gone
// by then. Without `read_folder`, config must not be a folder, and train.init is not looked into.
//
// Throws UserError: one line with the place (FILE:LINE or "command line"), the key, and what would be right.
Settings load_settings(const Sources& sources, const FolderReader& read_folder = {});

}  // namespace moelab
