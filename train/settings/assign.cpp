#include "train/settings/assign.h"

#include <algorithm>
#include <numeric>

#include "moe/settings/error.h"
#include "train/settings/common_names.h"
#include "train/settings/for_each_field.h"
#include "train/settings/presets/presets.h"

namespace moelab {
namespace {

// Levenshtein distance, with one row of the table.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// Edits that make the candidate of what was written; the beginning of a candidate is near it. A name without
// a group is also compared with bare keys: steps is near train.steps.
size_t distance_to(std::string_view candidate, std::string_view name) {
  // Time grows with the square of the input's length; no name is longer than 64, so the start decides.
  name = name.substr(0, 64);
  const bool begins = name.size() > 2 && candidate.size() > name.size() && candidate.starts_with(name);
  const size_t whole = begins ? 1 : edit_distance(name, candidate);
  if (name.find('.') != name.npos) return whole;
  return std::min(whole, edit_distance(name, candidate.substr(candidate.find('.') + 1)));
}

bool is_preset(std::string_view name) {
  return find_preset(model_presets(), name) != nullptr || find_preset(run_presets(), name) != nullptr;
}

// Suggests the nearest name when the value is not one of the enum's.
template <class T>
std::string hint(const Value&, const T&) {
  return "";
}
template <class Enum>
requires std::is_enum_v<Enum> std::string hint(const Value& value, const Enum&) {
  constexpr auto names = enum_names(Enum{});
  if (value.text.empty() || names.size() < 2) return "";
  return did_you_mean(value.text, std::vector<std::string>(names.begin(), names.end()));
}
template <class Enum>
requires std::is_enum_v<Enum> std::string hint(const Value& value, const std::vector<Enum>&) {
  std::vector<Value> items;
  if (!list_items(value, items)) return "";
  for (const Value& item : items) {
    Enum one;
    if (!read_value(item, {}, one)) return hint(item, one);
  }
  return "";
}
std::string hint(const Value& value, const std::string&) {
  return value.kind == Value::Kind::plain ? "; text that looks like another type goes in quotes" : "";
}

}  // namespace

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    const size_t distance = distance_to(candidate, name);
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return best;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best = by_common_name(name, candidates);
  if (best.empty()) {
    best = nearest(name, candidates);
    // With more letters wrong than right another word was meant, which the candidates do not have.
    if (best.empty() || 2 * distance_to(best, name) > name.size()) return "";
  }
  return "; did you mean " + best + "?";
}

std::vector<std::string> setting_keys() {
  std::vector<std::string> keys;
  const Settings defaults;
  for_each_field(defaults, [&](const Field& field, const auto&) { keys.push_back(field.key()); });
  return keys;
}

std::vector<std::string> setting_groups() {
  std::vector<std::string> groups;
  const Settings defaults;
  for_each_field(defaults, [&](const Field& field, const auto&) {
    if (groups.empty() || groups.back() != field.group) groups.emplace_back(field.group);
  });
  return groups;
}

std::string setting_named(const std::string& key) {
  if (key == "activations.recompute") return "activations.checkpoint";
  if (key == "activations.recompute_parts") return "activations.pieces";
  return key;
}

Assignment parse_override(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == text.npos || equals == 0) {
    const char* remedy = is_preset(text) ? "; a name goes after --config or --preset" : "";
    throw UserError("command line: " + describe({Value::Kind::argument, text, {}, 0}) +
                    ": expected key=value, e.g. train.steps=20" + remedy);
  }
  return {setting_named(text.substr(0, equals)),
          {Value::Kind::argument, text.substr(equals + 1), {}, 0},
          "command line"};
}

void throw_unknown_key(const std::string& where, const std::string& key) {
  throw UserError(where + ": " + describe({Value::Kind::argument, key, {}, 0}) + ": unknown setting" +
                  did_you_mean(key, setting_keys()));
}

void assign(Settings& settings, const Assignment& assignment) {
  bool found = false;
  for_each_field(settings, [&](const Field& field, auto& value) {
    if (found || field.key() != assignment.key) return;
    found = true;
    if (read_value(assignment.value, field.constraint, value)) return;
    throw UserError(assignment.where + ": " + assignment.key + ": expected " +
                    expected_text(&value, field.constraint) + ", got " + describe(assignment.value) +
                    hint(assignment.value, value));
  });
  if (!found) throw_unknown_key(assignment.where, assignment.key);
}

}  // namespace moelab
