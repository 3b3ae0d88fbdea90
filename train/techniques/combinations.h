#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/config/load.h"
#include "train/techniques/techniques.h"

namespace moelab {

using Overrides = std::vector<std::pair<std::string, std::string>>;  // key, value; each key once

// The settings with `change` made: a key that is there gets the new value, another follows at the end.
void change(Overrides& settings, const std::string& key, const std::string& value);

// The settings of a run with `parts` on: the baseline's, then `overrides` (key=value), then each part's.
// Which drive is the user's choice and no part of a technique: an override of placement.nvme_path stays.
// Throws UserError for an override that is none.
Overrides with_techniques(const std::vector<std::string>& overrides,
                          const std::vector<const Technique*>& parts);

// As the command line has them.
Sources sources_of(const std::string& config, const Overrides& settings);

// The rows of the table that are one technique each: neither the baseline nor several together.
std::vector<const Technique*> single_techniques();

// The names of the single techniques in a row; none in the baseline.
std::vector<std::string> technique_names(const Technique& row);

using Changes = std::map<std::string, std::string>;  // key -> value

// Why two sets of changes to settings are no pair: they give a key different values, or one has nothing that
// the other has not. Empty: they are one.
std::string clash(const Changes& a, const Changes& b);
std::string clash(const Technique& a, const Technique& b);

// Of each row of the table by its name, the single techniques that cannot stand beside it: they clash, or
// their settings together are refused. None for rows that are no single technique.
using Exclusions = std::map<std::string_view, std::vector<std::string_view>>;
Exclusions exclusions();

}  // namespace moelab
