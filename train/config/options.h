#pragma once
#include <string>

namespace moelab {

// One line a setting, `train.steps = 200: an integer from 0 to …`: the interface that users' files rely on. A
// test compares it with a recorded list.
std::string option_list();

// The settings with default, help and choices, grouped, and the named models and GPU sizes: for --help.
std::string settings_help();
std::string presets_help();

}  // namespace moelab
