#pragma once
#include <string_view>
#include <utility>
#include <vector>

namespace moelab {

// A named set of settings, as (dotted key, value) pairs in the form that the command line takes.
struct Preset {
  using Pairs = std::vector<std::pair<std::string_view, std::string_view>>;

  std::string_view name;
  std::string_view about;  // one line for --help
  Pairs settings;          // what the preset stands for
  Pairs recipe = {};  // a model's sensible training defaults, taken only when a run starts from the model
};

// Model shapes. `settings` holds model.* keys that differ from ModelSettings' defaults, and train.sequence.
const std::vector<Preset>& model_presets();

// What --preset and run.preset take: sizes of graphics cards (nominal GiB: memory.limit, batch and
// techniques), then the profiles of profiles.h.
const std::vector<Preset>& run_presets();

// The preset of that name, or null.
const Preset* find_preset(const std::vector<Preset>& presets, std::string_view name);

}  // namespace moelab
