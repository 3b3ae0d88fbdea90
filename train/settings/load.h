#pragma once
#include <functional>
#include <string>
#include <vector>

#include "train/settings/settings.h"

namespace moelab {

// The sources of a run's settings, in the order in which they are applied; later ones win.
struct Sources {
  std::string config = {};                  // a named model, a YAML file or a model folder; empty: moe-micro
  std::string preset = {};                  // a GPU size; empty: none
  std::vector<std::string> overrides = {};  // key=value; if a key is repeated, the last wins
};

// Reads the settings for training the model in `folder`. The UserError that it throws starts with the folder.
using FolderReader = std::function<Settings(const std::string& folder)>;

// Reads, scales (see miniature), resolves and validates. Within one source model.preset and run.preset are
// applied first and the source's other keys change them, in whatever order they are written. If run.scale is
// not 1, values are given at full size; in an override run.scale may be written as 1/64.
//
// If `config` is a folder, it gives model, attention and train.sequence. A folder in train.init gives the
// shape of its model at full size (run.scale does not apply to it), and its attention window unless the user
// sets attention. What the user sets of model.* must agree with these folders. A file that sets both
// train.init and the whole model, as a run's config.yaml does, is used as it is: the folder may be gone by
// then. Without `read_folder`, `config` must not be a folder, and train.init is not read.
//
// Throws UserError: one line with the place (FILE:LINE or "command line"), the key, and what would be right.
Settings load_settings(const Sources& sources, const FolderReader& read_folder = {});

}  // namespace moelab
