#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "train/settings/convert.h"
#include "train/settings/settings.h"

namespace moelab {

// One setting that the user gave, before its type is known.
struct Assignment {
  std::string key;  // dotted, e.g. train.steps
  Value value;
  std::string where;  // "FILE:LINE" or "command line", the start of messages about it
};

// The key of the setting that `key` names: some have a second name, which files and command lines may use.
std::string setting_named(const std::string& key);

// Splits KEY=VALUE. Throws UserError if `text` is not of that form.
Assignment parse_override(const std::string& text);

// Sets one setting. Throws UserError if no setting has that key (the message suggests the nearest name), or
// if the value has the wrong type or is outside its interval (the message says what is expected).
void assign(Settings& settings, const Assignment& assignment);

// Throws the UserError for an unknown key; to check a key before its value is read.
[[noreturn]] void throw_unknown_key(const std::string& where, const std::string& key);

// The candidate with the smallest edit distance to `name`, the first among equals; empty without candidates.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

// "; did you mean NEAREST?", with the candidate that other trainers call so (common_names.h) before the
// nearest; the empty string where no candidate is near: more of the name's letters would be wrong than
// right.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

// All dotted keys, and all groups, in order.
std::vector<std::string> setting_keys();
std::vector<std::string> setting_groups();

}  // namespace moelab
