#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "train/config/settings.h"

namespace moelab {

// All settings as YAML, in the order of the structs, one a line; reading it gives the same settings, and
// printing those the same bytes.
std::string print_settings(const Settings& settings);

// The same as a JSON object of groups; sizes are numbers of bytes, enums their names.
nlohmann::ordered_json settings_json(const Settings& settings);

// Each setting's key and value as the command line takes them.
std::map<std::string, std::string> setting_texts(const Settings& settings);

}  // namespace moelab
