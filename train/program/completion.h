#pragma once
#include <CLI/App.hpp>
#include <functional>
#include <string>

#include "train/program/help.h"

namespace moelab {

// The script that completes command lines in a shell, "bash" or "zsh": commands, their options, the settings
// that a command reads, and names where an option or a setting takes names; elsewhere files. `used`: by a
// command's name.
std::string completion_script(const std::string& shell, const CLI::App& program,
                              const std::function<UsedSettings(const std::string& command)>& used);

}  // namespace moelab
