#include "train/settings/load.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "moe/settings/error.h"
#include "train/settings/assign.h"
#include "train/settings/model_shape.h"
#include "train/settings/presets/presets.h"
#include "train/settings/resolve.h"
#include "train/settings/validate.h"
#include "train/settings/yaml_file.h"

namespace moelab {
namespace {

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

// `fresh`: the run starts from this model, so its recipe applies too. A model that replaces another one later
// leaves what the user has chosen by then.
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

// The last assignment to `key`; null if there is none.
const Assignment* given(const std::vector<Assignment>& assignments, std::string_view key) {
  const auto found =
      std::find_if(assignments.rbegin(), assignments.rend(), [&](const auto& a) { return a.key == key; });
  return found == assignments.rend() ? nullptr : &*found;
}

void apply(Settings& settings, const std::vector<Assignment>& assignments, bool fresh) {
  Settings names;  // receives only the preset names, to check their type before the look-up
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

// Returns the file's assignments; none for a named model.
std::vector<Assignment> apply_config(Settings& settings, const std::string& config) {
  if (config.empty() || find_preset(model_presets(), config) != nullptr) {
    apply_model(settings, config.empty() ? "moe-micro" : config, "--config", true);
    return {};
  }
  std::error_code error;
  if (!std::filesystem::exists(config, error)) {
    const std::filesystem::path path = config;
    if (path.has_parent_path() || path.extension() == ".yaml" || path.extension() == ".yml")
      throw UserError("--config " + config + ": no such file");
    const std::string near = did_you_mean(config, names_of(model_presets()));
    throw UserError("--config " + config + ": neither a model, nor a file or a folder" +
                    (near.empty() ? "; moelab train --help lists the models" : near));
  }
  std::vector<Assignment> assignments = read_yaml_file(config);
  apply(settings, assignments, true);
  return assignments;
}

// Evaluates "1/64" as a number; leaves other text to the setting's own reader.
std::string scale_text(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == text.npos) return text;
  double upper = 0, lower = 0;
  const bool numbers = read_value({Value::Kind::argument, text.substr(0, slash), {}, 0}, {}, upper) &&
                       read_value({Value::Kind::argument, text.substr(slash + 1), {}, 0}, at_least(1), lower);
  return numbers ? value_text(upper / lower) : text;
}

std::vector<Assignment> command_line(const std::vector<std::string>& overrides) {
  std::vector<Assignment> assignments;
  for (const std::string& text : overrides) {
    Assignment one = parse_override(text);
    if (one.key == "run.scale") one.value.text = scale_text(one.value.text);
    assignments.push_back(std::move(one));
  }
  return assignments;
}

// True if the file sets train.init and every model.* setting, so that the folder is not needed for the shape.
bool states_whole_model(const std::vector<Assignment>& file) {
  if (given(file, "train.init") == nullptr) return false;
  const std::vector<std::string> keys = setting_keys();
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
    return !key.starts_with("model.") || given(file, key) != nullptr;
  });
}

// Applies the sources to the settings, one after the other.
class Loader {
 public:
  Loader(const Sources& sources, const FolderReader& read_folder)
      : sources_(sources), read_folder_(read_folder), overrides_(command_line(sources.overrides)) {
    std::error_code error;
    from_folder_ = read_folder && find_preset(model_presets(), sources.config) == nullptr &&
                   std::filesystem::is_directory(sources.config, error);
  }

  Settings load() {
    from_folder_ ? start_from_folder() : start_from_config();
    if (!sources_.preset.empty()) apply_gpu(settings_, sources_.preset, "--preset");
    apply(settings_, overrides_, false);
    if (from_folder_) take(*folder_, "--config " + sources_.config);
    const bool shaped_by_init = init_is_read();
    if (!shaped_by_init) validate(settings_);
    settings_ = miniature(std::move(settings_));
    if (shaped_by_init) take(read_folder_(settings_.train.init), "train.init=" + settings_.train.init);
    settings_ = resolve(std::move(settings_));
    validate(settings_);
    return settings_;
  }

 private:
  void start_from_folder() {
    folder_ = unresolve(read_folder_(sources_.config));
    settings_.model = folder_->model;
    settings_.attention = folder_->attention;
    settings_.train.sequence = folder_->train.sequence;
  }

  void start_from_config() {
    file_ = apply_config(settings_, sources_.config);
    settings_ = unresolve(std::move(settings_));  // a file may be a resolved run's config.yaml
  }

  bool init_is_read() const {
    if (!read_folder_ || settings_.train.init.empty()) return false;
    return given(overrides_, "train.init") != nullptr || !states_whole_model(file_);
  }

  void take(const Settings& there, const std::string& named) {
    std::vector<Assignment> user = file_;
    user.insert(user.end(), overrides_.begin(), overrides_.end());
    take_shape(settings_, there.model, user, named);
    const auto is_attention = [](const Assignment& one) { return one.key.starts_with("attention."); };
    const bool own_attention = std::any_of(user.begin(), user.end(), is_attention);
    const AttentionSpan here = settings_.attention.span(), span = there.attention.span();
    if (!own_attention && (here.block != span.block || here.blocks != span.blocks))
      settings_.attention = there.attention;
  }

  const Sources& sources_;
  const FolderReader& read_folder_;
  std::vector<Assignment> overrides_, file_;
  bool from_folder_ = false;
  std::optional<Settings> folder_;
  Settings settings_;
};

}  // namespace

Settings load_settings(const Sources& sources, const FolderReader& read_folder) {
  return Loader(sources, read_folder).load();
}

}  // namespace moelab
