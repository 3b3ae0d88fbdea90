#include "train/settings/options.h"

#include <algorithm>

#include "train/settings/convert.h"
#include "train/settings/for_each_field.h"
#include "train/settings/presets/presets.h"
#include "train/settings/settings.h"

namespace moelab {
namespace {

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size() + 1), ' ');
  return text;
}

std::string preset_lines(const std::vector<Preset>& presets) {
  std::string text;
  for (const Preset& preset : presets)
    text += "  " + padded(std::string(preset.name), 24) + std::string(preset.about) + "\n";
  return text;
}

}  // namespace

std::string option_list() {
  std::string text;
  const Settings defaults;
  for_each_field(defaults, [&](const Field& field, const auto& value) {
    text += field.key() + " = " + value_text(value) + ": " + expected_text(&value, field.constraint) + "\n";
  });
  return text;
}

std::string settings_help() {
  std::string text = "Settings, as KEY=VALUE here or grouped in a YAML file (train: {steps: 200}):\n";
  const Settings defaults;
  std::string_view group;
  for_each_field(defaults, [&](const Field& field, const auto& value) {
    if (field.group != group) text += "\n";
    group = field.group;
    text += "  " + padded(field.key() + "=" + value_text(value), 34) + std::string(field.help) + "\n" +
            std::string(36, ' ') + "(" + expected_text(&value, field.constraint) + ")\n";
  });
  return text;
}

std::string presets_help() {
  return "Models (--config, model.preset):\n" + preset_lines(model_presets()) +
         "\nGPU sizes and profiles (--preset, run.preset):\n" + preset_lines(run_presets());
}

}  // namespace moelab
