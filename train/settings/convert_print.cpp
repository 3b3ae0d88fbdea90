#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "train/settings/convert.h"

namespace moelab {
namespace {

template <class T>
std::string list_text(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += (text.size() > 1 ? ", " : "") + value_text(value);
  return text + "]";
}

// All limits are doubles; whole ones are printed as integers (1000000000000 instead of 1e12).
std::string limit_text(double limit) {
  const bool whole = std::abs(limit) < 1e16 && limit == std::floor(limit);
  return whole ? value_text(static_cast<int64_t>(limit)) : value_text(limit);
}

std::string interval_text(Constraint constraint) {
  const bool low = std::isfinite(constraint.low), high = std::isfinite(constraint.high);
  if (low && high) return " from " + limit_text(constraint.low) + " to " + limit_text(constraint.high);
  if (low) return " of at least " + limit_text(constraint.low);
  return high ? " of at most " + limit_text(constraint.high) : "";
}

// True for text that every YAML reader reads as text without quotes: a word or a path, but not YAML 1.1's
// names for booleans and null, nor a number in exponent or hexadecimal form (those start with a digit).
bool is_plain_yaml(const std::string& text) {
  static constexpr std::array<std::string_view, 10> reserved = {"true", "false", "yes", "no", "on",
                                                                "off",  "null",  "y",   "n",  "nan"};
  std::string lower = text;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (text.empty() || std::find(reserved.begin(), reserved.end(), lower) != reserved.end()) return false;
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || c == '_' || c == '/'; };
  const auto rest = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '-'; };
  return letter(lower[0]) && std::all_of(lower.begin(), lower.end(), rest);
}

std::string shortened(const std::string& text) {
  std::string shown;
  for (char c : text.substr(0, 60)) shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  return shown + (text.size() > 60 ? "…" : "");
}

}  // namespace

std::string value_text(bool value) { return value ? "true" : "false"; }

std::string value_text(int64_t value) { return std::to_string(value); }

std::string value_text(double value) {
  std::array<char, 400> buffer;  // -DBL_MAX written out has 310 characters
  const auto shortest = [&](std::chars_format format) {
    return std::string(buffer.data(),
                       std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr);
  };
  std::string exponent = shortest(std::chars_format::scientific), fixed = shortest(std::chars_format::fixed);
  const size_t e = exponent.find('e');
  if (e != std::string::npos && exponent.find('.') == std::string::npos) exponent.insert(e, ".0");
  return fixed.size() <= exponent.size() ? fixed : exponent;
}

std::string value_text(Bytes value) {
  static constexpr std::array<std::pair<std::string_view, int64_t>, 8> units = {{{"KiB", int64_t{1} << 10},
                                                                                 {"MiB", int64_t{1} << 20},
                                                                                 {"GiB", int64_t{1} << 30},
                                                                                 {"TiB", int64_t{1} << 40},
                                                                                 {"kB", 1'000},
                                                                                 {"MB", 1'000'000},
                                                                                 {"GB", 1'000'000'000},
                                                                                 {"TB", 1'000'000'000'000}}};
  std::string best = std::to_string(value.count);
  for (const auto& [name, bytes] : units) {
    if (value.count == 0 || value.count % bytes != 0) continue;
    const std::string text = std::to_string(value.count / bytes) + std::string(name);
    if (text.size() < best.size()) best = text;
  }
  return best;
}

std::string value_text(const LossFactor& value) {
  return value.dynamic ? "dynamic" : value_text(value.fixed);
}

std::string value_text(const std::string& value) { return value; }
std::string value_text(const std::vector<int64_t>& value) { return list_text(value); }
std::string value_text(const std::vector<double>& value) { return list_text(value); }

std::string yaml_text(const std::string& value) {
  if (is_plain_yaml(value)) return value;
  std::string text = "\"";
  for (char c : value) text += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return text + "\"";
}

std::string expected_text(const bool*, Constraint) { return "true or false"; }
std::string expected_text(const int64_t*, Constraint c) { return "an integer" + interval_text(c); }
std::string expected_text(const double*, Constraint c) { return "a number" + interval_text(c); }
std::string expected_text(const Bytes*, Constraint) { return "a size such as 1500000, 12GB or 8GiB"; }
std::string expected_text(const LossFactor*, Constraint) { return "dynamic or a number of at least 0"; }
std::string expected_text(const std::string*, Constraint) { return "one line of text"; }
std::string expected_text(const std::vector<int64_t>*, Constraint c) {
  return "a list such as [0, 4], each an integer" + interval_text(c);
}
std::string expected_text(const std::vector<double>*, Constraint c) {
  return "a list such as [0.9, 0.95], each a number" + interval_text(c);
}

std::string one_of(const std::string_view* names, size_t count) {
  std::string text = count > 1 ? "one of " : "";
  for (size_t i = 0; i < count; ++i) text += (i > 0 ? ", " : "") + std::string(names[i]);
  return text;
}

std::string describe(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null:
      return "nothing (null)";
    case Value::Kind::list: {
      std::string text = "the list [";
      for (const Value& item : value.items)
        text += (&item == value.items.data() ? "" : ", ") + describe(item);
      return shortened(text) + "]";
    }
    case Value::Kind::map:
      return "a group of keys";
    case Value::Kind::quoted:
      return "the quoted text \"" + shortened(value.text) + "\"";
    case Value::Kind::plain:
    case Value::Kind::argument:
      break;
  }
  return value.text.empty() ? "nothing" : shortened(value.text);
}

}  // namespace moelab
