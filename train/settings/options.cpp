#include "train/settings/options.h"

#include <algorithm>
#include <string_view>
#include <type_traits>

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

template <class T>
std::vector<std::string> names_taken(const Field& field, const T&) {
  if constexpr (std::is_same_v<T, bool>) return {"true", "false"};
  if constexpr (std::is_enum_v<T>) {
    constexpr auto names = enum_names(T{});
    return {names.begin(), names.end()};
  }
  if (field.key() == "model.preset") return names_of(model_presets());
  if (field.key() == "run.preset") return names_of(run_presets());
  return {};
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

std::string settings_help(const std::function<bool(const std::string& key)>& wanted) {
  std::string text = "Settings, as KEY=VALUE here or grouped in a YAML file (train: {steps: 200}):\n";
  const Settings defaults;
  std::string_view group;
  for_each_field(defaults, [&](const Field& field, const auto& value) {
    if (!wanted(field.key())) return;
    if (field.group != group) text += "\n";
    group = field.group;
    text += "  " + padded(field.key() + "=" + value_text(value), 34) + std::string(field.help) + "\n" +
            std::string(36, ' ') + "(" + expected_text(&value, field.constraint) + ")\n";
  });
  return text;
}

std::string models_help() { return "Models (--config, model.preset):\n" + preset_lines(model_presets()); }

std::string run_presets_help() {
  return "GPU sizes and profiles (--preset, run.preset):\n" + preset_lines(run_presets());
}

std::vector<SettingNames> settings_with_names() {
  std::vector<SettingNames> settings;
  const Settings defaults;
  for_each_field(defaults, [&](const Field& field, const auto& value) {
    settings.push_back({field.key(), names_taken(field, value)});
  });
  return settings;
}

}  // namespace moelab
