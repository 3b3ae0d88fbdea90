#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "train/settings/settings.h"

namespace moelab {

// All settings as YAML, one per line, in declaration order. Reading the text back gives the same settings,
// and printing them gives the same bytes.
std::string print_settings(const Settings& settings);

// The settings as a JSON object of groups; sizes in bytes, enums by name.
nlohmann::ordered_json settings_json(const Settings& settings);

// Each setting's key, and its value as the command line accepts it.
std::map<std::string, std::string> setting_texts(const Settings& settings);

}  // namespace moelab
