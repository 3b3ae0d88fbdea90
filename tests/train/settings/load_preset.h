#pragma once
#include <string>
#include <string_view>

#include "moe/settings/error.h"
#include "train/settings/load.h"

namespace moelab::test {

// A model's settings with a run preset's; with whole matrices where the model's do not divide over the ranks
// that the preset gives to each.
inline Settings load_preset(std::string_view model, std::string_view preset) {
  Sources asked{.config = std::string(model), .preset = std::string(preset)};
  try {
    return load_settings(asked);
  } catch (const UserError& error) {
    if (std::string(error.what()).find("tensor-parallel") == std::string::npos) throw;
    asked.overrides = {"parallel.tensor=1"};
    return load_settings(asked);
  }
}

}  // namespace moelab::test
