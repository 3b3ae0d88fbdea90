#include "train/predict/savings.h"

#include <algorithm>
#include <map>
#include <optional>

#include "moe/settings/error.h"
#include "train/predict/techniques/run_rows.h"
#include "train/predict/techniques/techniques.h"
#include "train/settings/assign.h"
#include "train/settings/print.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

using Texts = std::map<std::string, std::string>;  // key -> value

// Whether all settings of a technique are on. Of those that the machine decides, any drive and any ranks do.
bool is_on(const Technique& technique, const Texts& now) {
  return std::all_of(technique.settings.begin(), technique.settings.end(), [&](const auto& pair) {
    const std::string& value = now.at(std::string(pair.first));
    const bool has_some = !value.empty() && value != "0" && value != "1";
    return is_of_machine(pair.first) ? has_some : value == pair.second;
  });
}

// Whether nothing of the technique can be taken away: as many ranks as there are stay.
bool is_of_machine_alone(const Technique& technique) {
  return std::all_of(technique.settings.begin(), technique.settings.end(),
                     [](const auto& pair) { return is_of_machine(pair.first); });
}

void set(Settings& settings, const std::string& key, const std::string& value) {
  assign(settings, {key, {Value::Kind::argument, value, {}, 0}, "techniques"});
}

// Accumulation counts as active at any number; removing it processes all rows in one micro-batch.
std::optional<Settings> without_accumulation(Settings settings) {
  TrainSettings& train = settings.train;
  if (train.accumulation == 1) return std::nullopt;
  train.micro_batch *= train.accumulation;
  train.accumulation = 1;
  return settings;
}

std::optional<Settings> without(const Technique& technique, const Settings& settings, const Texts& now,
                                const Texts& absent) {
  if (technique.name == "accumulation") return without_accumulation(settings);
  if (!technique.parts.empty() || !changes_a_step(technique) || is_of_machine_alone(technique) ||
      !is_on(technique, now))
    return std::nullopt;
  Settings changed = settings;
  for (const auto& [key, value] : technique.settings)
    if (!is_of_machine(key)) set(changed, std::string(key), absent.at(std::string(key)));
  return changed;
}

}  // namespace

std::vector<WithoutTechnique> without_each_technique(const Settings& settings) {
  const Texts now = setting_texts(settings);
  Texts absent = setting_texts(Settings{});
  const Technique& baseline = techniques().front();
  for (const auto& [key, value] : baseline.settings) absent[std::string(key)] = std::string(value);
  std::vector<WithoutTechnique> runs;
  for (const Technique& technique : techniques()) {
    if (&technique == &baseline) continue;
    const auto changed = without(technique, settings, now, absent);
    if (changed && is_valid(*changed))  // another active technique may require it
      runs.push_back({std::string(technique.name), *changed});
  }
  return runs;
}

std::vector<TechniqueSaving> technique_savings(const Settings& settings, const PredictPeak& predict) {
  const int64_t peak = predict(settings);
  std::vector<TechniqueSaving> savings;
  for (const WithoutTechnique& without : without_each_technique(settings)) {
    try {
      savings.push_back({without.name, predict(without.settings) - peak});
    } catch (const UserError&) {
      continue;  // refused by the model's own checks
    }
  }
  return savings;
}

}  // namespace moelab
