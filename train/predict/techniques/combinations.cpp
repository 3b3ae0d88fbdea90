#include "train/predict/techniques/combinations.h"

#include <algorithm>
#include <set>

#include "moe/settings/error.h"
#include "train/predict/techniques/run_rows.h"
#include "train/settings/assign.h"

namespace moelab {
namespace {

Changes changes_of(const Technique& technique) {
  Changes changes;
  for (const auto& [key, value] : technique.settings) changes.emplace(key, value);
  return changes;
}

bool are_refused(const Technique& a, const Technique& b) {
  if (!clash(a, b).empty()) return true;
  try {
    load_settings(sources_of("moe-micro", with_techniques({"moe-micro"}, {}, {&a, &b})));
    return false;
  } catch (const UserError&) {
    return true;
  }
}

// At full size, as settings are given.
int64_t tokens_of_micro_batch(const Base& base, Overrides settings) {
  change(settings, "run.scale", "1");
  const TrainSettings train = load_settings(sources_of(base.config, settings), base.read_folder).train;
  return train.micro_batch * train.row();
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

Overrides with_techniques(const Base& base, const std::vector<std::string>& overrides,
                          const std::vector<const Technique*>& parts) {
  Overrides settings;
  std::set<std::string> of_user;
  for (const auto& [key, value] : techniques().front().settings)
    change(settings, std::string(key), std::string(value));
  for (const std::string& text : overrides) {
    const std::string key = parse_override(text).key;
    if (is_of_machine(key)) of_user.insert(key);
    change(settings, key, text.substr(key.size() + 1));
  }
  const Overrides without = settings;
  for (const Technique* part : parts) {
    for (const auto& [key, value] : part->settings)
      if (!of_user.contains(std::string(key))) change(settings, std::string(key), std::string(value));
    if (packs(*part))
      change(settings, std::string(kPackedTokens), std::to_string(tokens_of_micro_batch(base, without)));
  }
  return settings;
}

Sources sources_of(const std::string& config, const Overrides& settings) {
  Sources sources{.config = config};
  for (const auto& [key, value] : settings) sources.overrides.push_back(key + "=" + value);
  return sources;
}

std::vector<const Technique*> single_techniques() {
  std::vector<const Technique*> singles;
  for (const Technique& technique : techniques())
    if (&technique != &techniques().front() && technique.parts.empty()) singles.push_back(&technique);
  return singles;
}

std::vector<std::string> technique_names(const Technique& row) {
  if (&row == &techniques().front()) return {};
  if (row.parts.empty()) return {std::string(row.name)};
  return {row.parts.begin(), row.parts.end()};
}

std::string clash(const Changes& a, const Changes& b) {
  size_t shared = 0;
  for (const auto& [key, value] : a) {
    const auto other = b.find(key);
    if (other == b.end()) continue;
    if (other->second != value) return "both set " + key;
    ++shared;
  }
  return shared == a.size() || shared == b.size() ? "one has nothing that the other has not" : "";
}

std::string clash(const Technique& a, const Technique& b) { return clash(changes_of(a), changes_of(b)); }

Exclusions exclusions() {
  Exclusions excluded;
  for (const Technique& row : techniques()) excluded[row.name];
  const std::vector<const Technique*> singles = single_techniques();
  for (size_t i = 0; i < singles.size(); ++i) {
    for (size_t j = i + 1; j < singles.size(); ++j) {
      if (!are_refused(*singles[i], *singles[j])) continue;
      excluded[singles[i]->name].push_back(singles[j]->name);
      excluded[singles[j]->name].push_back(singles[i]->name);
    }
  }
  return excluded;
}

}  // namespace moelab
