#pragma once
#include <functional>
#include <string>
#include <vector>

namespace moelab {

// One line per setting, `train.steps = 200: an integer from 0 to …`. Users' files rely on this interface, so
// a test compares it with a recorded list.
std::string option_list();

// For --help: the settings whose key is `wanted`, with default, help and choices, by group.
std::string settings_help(const std::function<bool(const std::string& key)>& wanted);
// The named models; the GPU sizes and profiles.
std::string models_help();
std::string run_presets_help();

// Each setting's key and the names that it takes, in order; none: text or a number.
struct SettingNames {
  std::string key;
  std::vector<std::string> names;
};
std::vector<SettingNames> settings_with_names();

}  // namespace moelab
