#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moelab {

// A named set of settings, as (dotted key, value) pairs, written as on the command line.
struct Preset {
  using Pairs = std::vector<std::pair<std::string_view, std::string_view>>;

  std::string_view name;
  std::string_view about;  // one line for --help
  Pairs settings;          // what the preset sets
  Pairs recipe = {};       // a model's training defaults, used only when a run starts from the model
};

// The graphics card that a preset is for.
struct Card {
  std::string_view preset;
  std::string_view name;
  int capability;  // compute capability, 10 * major + minor
};

// Models. `settings` holds the model.* keys that differ from ModelSettings' defaults, and train.sequence.
const std::vector<Preset>& model_presets();

// The presets for --preset and run.preset: sizes of graphics cards (nominal GiB: memory.limit, batch and
// techniques), then the profiles of profiles.h.
const std::vector<Preset>& run_presets();

// The card of a GPU size; null for other presets.
const Card* find_card(std::string_view preset);

std::vector<std::string> names_of(const std::vector<Preset>& presets);

// The preset with that name, or null.
const Preset* find_preset(const std::vector<Preset>& presets, std::string_view name);

}  // namespace moelab
