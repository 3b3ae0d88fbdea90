#include "train/config/load.h"

#include <algorithm>
#include <filesystem>

#include "moe/settings/error.h"
#include "train/config/assign.h"
#include "train/config/resolve.h"
#include "train/config/validate.h"
#include "train/config/yaml_file.h"
#include "train/presets/presets.h"

namespace moelab {
namespace {

std::vector<std::string> names_of(const std::vector<Preset>& presets) {
  std::vector<std::string> names;
  for (const Preset& preset : presets) names.emplace_back(preset.name);
  return names;
}

const Preset& preset_named(const std::vector<Preset>& presets, const std::string& name,
                           const std::string& where, const char* what) {
  if (const Preset* preset = find_preset(presets, name)) return *preset;
  throw UserError(where + ": unknown " + what + " " + describe({Value::Kind::argument, name, {}, 0}) +
                  did_you_mean(name, names_of(presets)));
}

void assign_pairs(Settings& settings, const Preset& preset, const Preset::Pairs& pairs) {
  for (const auto& [key, value] : pairs)
    assign(settings, {std::string(key),
                      {Value::Kind::argument, std::string(value), {}, 0},
                      "preset " + std::string(preset.name)});
}

// `fresh`: the run starts from this model, so its recipe holds too; a model that replaces another one late
// leaves alone what the user has chosen by then.
void apply_model(Settings& settings, const std::string& name, const std::string& where, bool fresh) {
  const Preset& preset = preset_named(model_presets(), name, where, "model");
  settings.model = {};
  settings.model.preset = name;
  assign_pairs(settings, preset, preset.settings);
  if (fresh) assign_pairs(settings, preset, preset.recipe);
}

void apply_gpu(Settings& settings, const std::string& name, const std::string& where) {
  settings.run.preset = name;
  if (name.empty()) return;
  const Preset& preset = preset_named(run_presets(), name, where, "preset");
  assign_pairs(settings, preset, preset.settings);
}

const Assignment* given(const std::vector<Assignment>& assignments, std::string_view key) {
  const auto found =
      std::find_if(assignments.begin(), assignments.end(), [&](const auto& a) { return a.key == key; });
  return found == assignments.end() ? nullptr : &*found;
}

void apply(Settings& settings, const std::vector<Assignment>& assignments, bool fresh) {
  Settings names;  // takes the presets' names alone, so that their type is checked before they are looked up
  if (const Assignment* model = given(assignments, "model.preset")) {
    assign(names, *model);
    apply_model(settings, names.model.preset, model->where + ": model.preset", fresh);
  }
  if (const Assignment* gpu = given(assignments, "run.preset")) {
    assign(names, *gpu);
    apply_gpu(settings, names.run.preset, gpu->where + ": run.preset");
  }
  for (const Assignment& assignment : assignments) assign(settings, assignment);
}

void apply_config(Settings& settings, const std::string& config) {
  if (config.empty() || find_preset(model_presets(), config) != nullptr)
    return apply_model(settings, config.empty() ? "moe-micro" : config, "--config", true);
  std::error_code error;
  if (!std::filesystem::exists(config, error))
    throw UserError("--config " + config + ": neither a model nor a file" +
                    did_you_mean(config, names_of(model_presets())));
  apply(settings, read_yaml_file(config), true);
}

// "1/64" as the number that it is; anything else is left to the setting's own reader.
std::string scale_text(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == text.npos) return text;
  double upper = 0, lower = 0;
  const bool numbers = read_value({Value::Kind::argument, text.substr(0, slash), {}, 0}, {}, upper) &&
                       read_value({Value::Kind::argument, text.substr(slash + 1), {}, 0}, at_least(1), lower);
  return numbers ? value_text(upper / lower) : text;
}

std::vector<Assignment> command_line(const Sources& sources) {
  std::vector<std::string> texts = sources.overrides;
  if (!sources.device.empty()) texts.push_back("run.device=" + sources.device);
  if (!sources.scale.empty()) texts.push_back("run.scale=" + scale_text(sources.scale));
  std::vector<Assignment> assignments;
  for (const std::string& text : texts) {
    assignments.push_back(parse_override(text));
    const Assignment& last = assignments.back();
    if (given(assignments, last.key) != &last) throw UserError("command line: " + last.key + ": given twice");
  }
  return assignments;
}

}  // namespace

Settings load_settings(const Sources& sources) {
  const std::vector<Assignment> overrides = command_line(sources);
  Settings settings;
  apply_config(settings, sources.config);
  settings = unresolve(std::move(settings));  // a file may be a resolved run's config.yaml
  if (!sources.preset.empty()) apply_gpu(settings, sources.preset, "--preset");
  apply(settings, overrides, false);
  validate(settings);
  settings = resolve(miniature(std::move(settings)));
  validate(settings);
  return settings;
}

}  // namespace moelab
