#include "train/settings/model_shape.h"

#include <algorithm>
#include <array>

#include "moe/settings/error.h"
#include "train/settings/for_each_field.h"
#include "train/settings/print.h"
#include "train/settings/resolve.h"

namespace moelab {
namespace {

constexpr std::array<std::string_view, 5> kTrainingOnly = {"preset", "capacity_factor", "dispatch", "z_loss",
                                                           "balance_loss"};

bool is_shape(const Field& field) {
  return field.group == "model" &&
         std::find(kTrainingOnly.begin(), kTrainingOnly.end(), field.name) == kTrainingOnly.end();
}

// The assignment that sets `key`: the last one, or model.preset, which sets the whole shape.
const Assignment* giver(const std::vector<Assignment>& given, const std::string& key) {
  const auto last = [&](std::string_view wanted) {
    const auto found =
        std::find_if(given.rbegin(), given.rend(), [&](const auto& a) { return a.key == wanted; });
    return found == given.rend() ? nullptr : &*found;
  };
  const Assignment* own = last(key);
  return own != nullptr ? own : last("model.preset");
}

// Copies those model-shape settings for which wanted(key) holds.
template <class Wanted>
void copy_shape(const Settings& from, Settings& to, Wanted wanted) {
  for_each_field(from, [&](const Field& field, const auto& value) {
    if (is_shape(field) && wanted(field.key()))
      assign(to, {field.key(), {Value::Kind::argument, value_text(value), {}, 0}, "code"});
  });
}

}  // namespace

nlohmann::ordered_json shape_settings(const ModelSettings& model) {
  Settings settings;
  settings.model = model;
  nlohmann::ordered_json values = settings_json(resolve(std::move(settings)))["model"];
  for (const std::string_view name : kTrainingOnly) values.erase(std::string(name));
  return values;
}

void take_shape(Settings& settings, const ModelSettings& model, const std::vector<Assignment>& given,
                const std::string& folder) {
  Settings there;
  there.model = model;
  there = resolve(std::move(there));
  Settings asked = there;
  copy_shape(settings, asked, [&](const std::string& key) { return giver(given, key) != nullptr; });
  const nlohmann::ordered_json right = shape_settings(there.model), user = shape_settings(asked.model);
  std::string differences;
  for (const auto& [name, value] : user.items()) {
    if (value == right.at(name)) continue;
    const Assignment* by = giver(given, "model." + name);
    const std::string preset = by->key == "model.preset" ? ": model.preset=" + settings.model.preset : "";
    differences += (differences.empty() ? "model." : ", model.") + name + "=" + right.at(name).dump() + " (" +
                   by->where + preset + ": " + value.dump() + ")";
  }
  if (!differences.empty())
    throw UserError(folder + ": another model: it has " + differences +
                    "; leave out what contradicts it, or give its values");
  copy_shape(there, settings, [](const std::string&) { return true; });
  if (giver(given, "model.preset") == nullptr) settings.model.preset = model.preset;
}

}  // namespace moelab
