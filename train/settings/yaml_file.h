#pragma once
#include <string>
#include <vector>

#include "train/settings/assign.h"

namespace moelab {

// Reads a YAML file of settings in groups: `train: {steps: 20}`. One document of at most 1 MiB and 16 levels.
// Anchors, aliases, tags, duplicate keys and unknown keys are refused. Throws UserError with FILE:LINE.
std::vector<Assignment> read_yaml_file(const std::string& path);

// As read_yaml_file, from text; `name` replaces the file's path in messages.
std::vector<Assignment> read_yaml(const std::string& text, const std::string& name);

}  // namespace moelab
