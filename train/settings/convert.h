#pragma once
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "moe/settings/visitor.h"
#include "train/settings/loss_factor.h"

// Converts between what the user writes and the types of settings, both ways.
namespace moelab {

// A part of a YAML file, or the text after `=` on the command line.
struct Value {
  enum class Kind { null, plain, quoted, argument, list, map };

  Kind kind = Kind::null;
  std::string text;          // plain, quoted (without the quotes), argument
  std::vector<Value> items;  // list: its elements; map: key, value, key, value, …
  int line = 0;              // in the file, from 1; 0: not from a file
};

// True if the text is UTF-8 on one line without control characters, so that it can be printed and read back
// unchanged.
bool is_clean_text(std::string_view text);

// Each sets `out` and returns true when the value has that type and is in the interval of `constraint`
// (lists: every element). Nothing is converted silently: 1.5, true and "3" (in quotes) are not integers, and
// a plain 3 or true is not text. Text from the command line is taken as it is.
bool read_value(const Value& value, Constraint constraint, bool& out);
bool read_value(const Value& value, Constraint constraint, int64_t& out);
bool read_value(const Value& value, Constraint constraint, double& out);
bool read_value(const Value& value, Constraint constraint, Bytes& out);
bool read_value(const Value& value, Constraint constraint, LossFactor& out);
bool read_value(const Value& value, Constraint constraint, std::string& out);
bool read_value(const Value& value, Constraint constraint, std::vector<int64_t>& out);
bool read_value(const Value& value, Constraint constraint, std::vector<double>& out);
int find_name(const Value& value, const std::string_view* names, size_t count);  // -1: none of them
// The elements of a list, from a file or as [a, b] on the command line; false if it is not a list.
bool list_items(const Value& value, std::vector<Value>& items);

template <class Enum>
requires std::is_enum_v<Enum>
bool read_value(const Value& value, Constraint, Enum& out) {
  constexpr auto names = enum_names(Enum{});
  const int index = find_name(value, names.data(), names.size());
  if (index >= 0) out = static_cast<Enum>(index);
  return index >= 0;
}

template <class Enum>
requires std::is_enum_v<Enum>
bool read_value(const Value& value, Constraint constraint, std::vector<Enum>& out) {
  std::vector<Value> items;
  if (!list_items(value, items)) return false;
  std::vector<Enum> result(items.size());
  for (size_t i = 0; i < result.size(); ++i)
    if (!read_value(items[i], constraint, result[i])) return false;
  out = std::move(result);
  return true;
}

// The shortest text that reads back as the same value. A number with an exponent has a decimal point
// (1.0e-08), because YAML 1.1 readers such as PyYAML take 1e-08 for text. Bytes use the unit that makes the
// text shortest and still exact.
std::string value_text(bool value);
std::string value_text(int64_t value);
std::string value_text(double value);
std::string value_text(Bytes value);
std::string value_text(const LossFactor& value);
std::string value_text(const std::string& value);
std::string value_text(const std::vector<int64_t>& value);
std::string value_text(const std::vector<double>& value);

template <class Enum>
requires std::is_enum_v<Enum> std::string value_text(Enum value) {
  return std::string(enum_names(value)[static_cast<size_t>(value)]);
}

template <class Enum>
requires std::is_enum_v<Enum> std::string value_text(const std::vector<Enum>& values) {
  std::string text = "[";
  for (const Enum value : values) text += (text.size() > 1 ? ", " : "") + value_text(value);
  return text + "]";
}

// As value_text, but quoted where YAML would read the text as something else.
std::string yaml_text(const std::string& value);

// The expected type for an error message, e.g. "an integer from 1 to 4096".
std::string expected_text(const bool*, Constraint);
std::string expected_text(const int64_t*, Constraint);
std::string expected_text(const double*, Constraint);
std::string expected_text(const Bytes*, Constraint);
std::string expected_text(const LossFactor*, Constraint);
std::string expected_text(const std::string*, Constraint);
std::string expected_text(const std::vector<int64_t>*, Constraint);
std::string expected_text(const std::vector<double>*, Constraint);
std::string one_of(const std::string_view* names, size_t count);

template <class Enum>
requires std::is_enum_v<Enum> std::string expected_text(const Enum*, Constraint) {
  constexpr auto names = enum_names(Enum{});
  return one_of(names.data(), names.size());
}

template <class Enum>
requires std::is_enum_v<Enum> std::string expected_text(const std::vector<Enum>*, Constraint) {
  constexpr auto names = enum_names(Enum{});
  return "a list such as [" + std::string(names.front()) + ", " + std::string(names.back()) + "], each " +
         one_of(names.data(), names.size());
}

// What the user wrote instead, for the same message.
std::string describe(const Value& value);

}  // namespace moelab
