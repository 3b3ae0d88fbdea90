#pragma once
#include <string>

namespace moelab {

// One line per setting, `train.steps = 200: an integer from 0 to …`. Users' files rely on this interface, so
// a test compares it with a recorded list.
std::string option_list();

// For --help: the settings with default, help and choices, by group; and the named models and GPU sizes.
std::string settings_help();
std::string presets_help();

}  // namespace moelab
