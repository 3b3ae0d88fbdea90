#pragma once
#include <string>
#include <vector>

#include "train/config/assign.h"

namespace moelab {

// Reads a YAML file of settings, groups of keys: `train: {steps: 20}`. One document of at most 1 MiB and 16
// levels; anchors, aliases and tags are refused, as are duplicate and unknown keys. Throws UserError with
// FILE:LINE.
std::vector<Assignment> read_yaml_file(const std::string& path);

// The same from text; `name` takes the place of the file's path in messages.
std::vector<Assignment> read_yaml(const std::string& text, const std::string& name);

}  // namespace moelab
