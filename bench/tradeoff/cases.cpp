#include "bench/tradeoff/cases.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>

#include "moe/settings/error.h"
#include "train/config/assign.h"
#include "train/config/load.h"
#include "train/config/print.h"
#include "train/techniques/techniques.h"

namespace moelab::tradeoff {
namespace {

// Nothing but training is measured, and nothing but records is kept.
Overrides common_settings(int64_t steps) {
  return {{"train.steps", std::to_string(steps)},
          {"eval.batches", "0"},
          {"checkpoint.keep", "0"},
          {"monitor.quiet", "true"},
          {"run.log_every", "0"}};
}

void change(Overrides& settings, const Preset::Pairs& pairs) {
  for (const auto& [key, value] : pairs) tradeoff::change(settings, std::string(key), std::string(value));
}

void change(Overrides& settings, const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) {
    const std::string key = parse_override(text).key;
    tradeoff::change(settings, key, text.substr(key.size() + 1));
  }
}

std::string hash_of(const Settings& resolved) {
  const std::string text = settings_json(resolved).dump();
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return digits;
}

int64_t tokens_per_step(const TrainSettings& train) {
  return train.micro_batch * train.accumulation * train.sequence;
}

std::vector<std::string> single_techniques(const Technique& technique) {
  if (&technique == &techniques().front()) return {};
  if (technique.parts.empty()) return {std::string(technique.name)};
  return {technique.parts.begin(), technique.parts.end()};
}

bool wanted(const Technique& technique, const std::vector<std::string>& only) {
  return only.empty() || &technique == &techniques().front() ||
         std::find(only.begin(), only.end(), technique.name) != only.end();
}

Case make_case(const Technique& technique, const CaseOptions& options) {
  const Technique& baseline = techniques().front();
  Case one;
  one.name = technique.name;
  one.techniques = single_techniques(technique);
  one.settings = common_settings(options.steps);
  change(one.settings, baseline.settings);
  change(one.settings, options.overrides);
  if (&technique == &baseline) return one;
  one.against = baseline.name;
  change(one.settings, technique.settings);
  // which drive is the user's choice and no part of a technique
  const std::string drive = "placement.nvme_path";
  for (const std::string& text : options.overrides) {
    if (text.starts_with(drive + "=")) tradeoff::change(one.settings, drive, text.substr(drive.size() + 1));
  }
  return one;
}

Settings resolved_settings(const Case& one, const std::string& model) {
  Sources sources{.config = model};
  for (const auto& [key, value] : one.settings) sources.overrides.push_back(key + "=" + value);
  Settings resolved = load_settings(sources);
  if (resolved.data.path.empty())
    throw UserError("data.path is not set: give token shards to train on, e.g. data.path=data/python-stdlib");
  return resolved;
}

// The case's settings, resolved. Under a limit the run must stay the one that is measured: one that does not
// fit ends instead of going on in smaller batches, unless memory.recover is given.
Settings settle(Case& one, const std::string& model) {
  Settings resolved = resolved_settings(one, model);
  const auto is_recover = [](const auto& pair) { return pair.first == "memory.recover"; };
  const bool given = std::any_of(one.settings.begin(), one.settings.end(), is_recover);
  if (resolved.memory.limit.count == 0 || given) return resolved;
  tradeoff::change(one.settings, "memory.recover", "false");
  return resolved_settings(one, model);
}

void check_names(const std::vector<std::string>& only) {
  std::vector<std::string> names;
  for (const Technique& technique : techniques()) names.emplace_back(technique.name);
  for (const std::string& name : only)
    if (find_technique(name) == nullptr)
      throw UserError("--only: unknown technique " + name + did_you_mean(name, names));
}

}  // namespace

void change(Overrides& settings, const std::string& key, const std::string& value) {
  const auto known =
      std::find_if(settings.begin(), settings.end(), [&](const auto& pair) { return pair.first == key; });
  if (known == settings.end())
    settings.emplace_back(key, value);
  else
    known->second = value;
}

std::vector<Case> make_cases(const CaseOptions& options) {
  check_names(options.only);
  std::vector<Case> cases;
  int64_t tokens = 0;  // a step of the baseline
  for (const Technique& technique : techniques()) {
    if (!wanted(technique, options.only)) continue;
    Case one = make_case(technique, options);
    const Settings resolved = settle(one, options.model);
    one.hash = hash_of(resolved);
    if (cases.empty()) tokens = tokens_per_step(resolved.train);
    if (tokens_per_step(resolved.train) != tokens)
      throw UserError(
          "case " + one.name + " trains on " + std::to_string(tokens_per_step(resolved.train)) +
          " tokens a step and the baseline on " + std::to_string(tokens) +
          "; give micro_batch and accumulation that make them equal, or leave it out with --only");
    cases.push_back(std::move(one));
  }
  return cases;
}

}  // namespace moelab::tradeoff
