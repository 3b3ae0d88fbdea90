#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/predict/techniques/techniques.h"
#include "train/settings/load.h"

namespace moelab {

using Overrides = std::vector<std::pair<std::string, std::string>>;  // key, value; each key once

// Makes `change` in the settings: replaces the value of an existing key, or appends the key.
void change(Overrides& settings, const std::string& key, const std::string& value);

// What the settings of a run are changed in: `config`, and how to read it if it is a model's folder.
struct Base {
  std::string config;  // a named model, a YAML file or a model folder
  FolderReader read_folder = {};
};

// The settings of a run with `parts` on: the baseline's, changed by `overrides` (key=value), then by each
// part. Where the machine decides a part's setting (is_of_machine), an override stays. A part that packs rows
// packs as many tokens as a micro-batch without the parts has.
// Throws UserError for an override that is not key=value.
Overrides with_techniques(const Base& base, const std::vector<std::string>& overrides,
                          const std::vector<const Technique*>& parts);

// As if the settings were given on the command line.
Sources sources_of(const std::string& config, const Overrides& settings);

// The rows of the table with a single technique: not the baseline, and not combinations.
std::vector<const Technique*> single_techniques();

// The names of the single techniques that a row combines; none for the baseline.
std::vector<std::string> technique_names(const Technique& row);

using Changes = std::map<std::string, std::string>;  // key -> value

// Why two sets of changes cannot be combined: they give a key different values, or one set contains the
// other. Empty: they can be combined.
std::string clash(const Changes& a, const Changes& b);
std::string clash(const Technique& a, const Technique& b);

// For each row of the table, by name: the single techniques that cannot be combined with it, because the two
// clash or validation refuses them together. Empty for rows that are not single techniques.
using Exclusions = std::map<std::string_view, std::vector<std::string_view>>;
Exclusions exclusions();

}  // namespace moelab
