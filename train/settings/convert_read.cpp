#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "train/settings/convert.h"

namespace moelab {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool inside(Constraint constraint, double number) {
  return number >= constraint.low && number <= constraint.high;  // false for NaN
}

// Decimal digits with an optional sign. A leading zero is refused: YAML 1.1 takes 010 for eight.
bool parse_integer(std::string_view text, int64_t& out) {
  std::string_view digits = text;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.remove_prefix(1);
  if (digits.empty() || !is_digit(digits[0]) || (digits.size() > 1 && digits[0] == '0')) return false;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text[0] == '+' ? digits.data() : text.data(), end, out);
  return result.ec == std::errc() && result.ptr == end;
}

bool parse_number(std::string_view text, double& out) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  const size_t first = !text.empty() && text[0] == '-' ? 1 : 0;
  if (text.size() <= first || !(is_digit(text[first]) || text[first] == '.')) return false;  // inf, nan, +-1
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, out);
  return result.ec == std::errc() && result.ptr == end && std::isfinite(out);
}

// Reads digits with at most one decimal point as digits x 10^-decimals; false for more than 27 digits, which
// no int64 needs.
bool parse_decimal(std::string_view text, __int128& digits, int& decimals) {
  digits = 0, decimals = 0;
  bool point = false;
  size_t count = 0;
  for (char c : text) {
    if (c == '.' && !point && count > 0) {
      point = true;
    } else if (is_digit(c) && count < 27) {
      digits = digits * 10 + (c - '0'), decimals += point, ++count;
    } else {
      return false;
    }
  }
  return count > 0 && text.back() != '.';
}

int64_t unit_bytes(std::string_view unit) {
  static constexpr std::array<std::pair<std::string_view, int64_t>, 9> units = {{{"B", 1},
                                                                                 {"kB", 1'000},
                                                                                 {"MB", 1'000'000},
                                                                                 {"GB", 1'000'000'000},
                                                                                 {"TB", 1'000'000'000'000},
                                                                                 {"KiB", int64_t{1} << 10},
                                                                                 {"MiB", int64_t{1} << 20},
                                                                                 {"GiB", int64_t{1} << 30},
                                                                                 {"TiB", int64_t{1} << 40}}};
  for (const auto& [name, bytes] : units)
    if (name == unit) return bytes;
  return 0;
}

// The result must be a whole number of bytes: 1.5GiB is accepted, 0.3B is not.
bool parse_bytes(std::string_view text, bool unit_needed, int64_t& out) {
  const size_t end = text.find_first_not_of("0123456789.");
  std::string_view unit = end == text.npos ? std::string_view() : text.substr(end);
  if (!unit.empty() && unit[0] == ' ') unit.remove_prefix(1);
  const int64_t scale = unit.empty() && end == text.npos && !unit_needed ? 1 : unit_bytes(unit);
  __int128 count = 0;
  int decimals = 0;
  if (scale == 0 || !parse_decimal(text.substr(0, end), count, decimals)) return false;
  // count < 10^27 and scale <= 2^40: checks that the product fits 128 bits.
  if (count > (static_cast<__int128>(1) << 86)) return false;
  count *= scale;
  for (; decimals > 0; --decimals) {
    if (count % 10 != 0) return false;
    count /= 10;
  }
  if (count > std::numeric_limits<int64_t>::max()) return false;
  out = static_cast<int64_t>(count);
  return true;
}

bool is_scalar_text(const Value& value) {
  return value.kind == Value::Kind::plain || value.kind == Value::Kind::argument;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Reads "[0, 4]" from the command line as a list, as a file would have it.
bool argument_list(std::string_view text, Value& out) {
  text = trimmed(text);
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return false;
  text = trimmed(text.substr(1, text.size() - 2));
  out = {Value::Kind::list, {}, {}, 0};
  if (text.empty()) return true;
  for (size_t comma = 0; comma != text.npos; text.remove_prefix(comma == text.npos ? 0 : comma + 1)) {
    comma = text.find(',');
    out.items.push_back({Value::Kind::plain, std::string(trimmed(text.substr(0, comma))), {}, 0});
  }
  return true;
}

template <class T>
bool read_list(const Value& value, Constraint constraint, std::vector<T>& out) {
  std::vector<Value> items;
  if (!list_items(value, items)) return false;
  std::vector<T> result(items.size());
  for (size_t i = 0; i < result.size(); ++i)
    if (!read_value(items[i], constraint, result[i])) return false;
  out = std::move(result);
  return true;
}

// Length of the UTF-8 sequence at the start of the text; 0 if it is invalid (overlong forms and surrogates
// included).
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t length = lead < 0x80   ? 1
                        : lead < 0xC2 ? 0
                        : lead < 0xE0 ? 2
                        : lead < 0xF0 ? 3
                        : lead < 0xF5 ? 4
                                      : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const bool bad = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F) ||
                   (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F);
  return bad ? 0 : length;
}

}  // namespace

bool is_clean_text(std::string_view text) {
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const size_t length = utf8_length(text);
    if (length == 0 || lead < 0x20 || lead == 0x7F) return false;
    text.remove_prefix(length);
  }
  return true;
}

bool read_value(const Value& value, Constraint, bool& out) {
  if (!is_scalar_text(value) || (value.text != "true" && value.text != "false")) return false;
  out = value.text == "true";
  return true;
}

bool read_value(const Value& value, Constraint constraint, int64_t& out) {
  int64_t number = 0;
  if (!is_scalar_text(value) || !parse_integer(value.text, number)) return false;
  if (!inside(constraint, static_cast<double>(number))) return false;
  out = number;
  return true;
}

bool read_value(const Value& value, Constraint constraint, double& out) {
  double number = 0;
  if (!is_scalar_text(value) || !parse_number(value.text, number) || !inside(constraint, number))
    return false;
  out = number;
  return true;
}

bool read_value(const Value& value, Constraint, Bytes& out) {
  const bool quoted = value.kind == Value::Kind::quoted;
  return (quoted || is_scalar_text(value)) && parse_bytes(value.text, quoted, out.count);
}

bool read_value(const Value& value, Constraint, LossFactor& out) {
  const std::string_view dynamic = "dynamic";
  if (find_name(value, &dynamic, 1) == 0) {
    out = {0, true};
    return true;
  }
  double fixed = 0;
  if (!read_value(value, at_least(0), fixed)) return false;
  out = {fixed, false};
  return true;
}

bool read_value(const Value& value, Constraint, std::string& out) {
  double number = 0;
  bool flag = false;
  const bool other_type =
      value.kind == Value::Kind::plain && (parse_number(value.text, number) || read_value(value, {}, flag));
  const bool text = value.kind == Value::Kind::plain || value.kind == Value::Kind::quoted ||
                    value.kind == Value::Kind::argument;
  if (!text || other_type || !is_clean_text(value.text)) return false;
  out = value.text;
  return true;
}

bool read_value(const Value& value, Constraint constraint, std::vector<int64_t>& out) {
  return read_list(value, constraint, out);
}

bool read_value(const Value& value, Constraint constraint, std::vector<double>& out) {
  return read_list(value, constraint, out);
}

bool list_items(const Value& value, std::vector<Value>& items) {
  Value parsed;
  if (value.kind == Value::Kind::argument && !argument_list(value.text, parsed)) return false;
  const Value& list = value.kind == Value::Kind::argument ? parsed : value;
  if (list.kind != Value::Kind::list) return false;
  items = list.items;
  return true;
}

int find_name(const Value& value, const std::string_view* names, size_t count) {
  if (value.kind != Value::Kind::quoted && !is_scalar_text(value)) return -1;
  for (size_t i = 0; i < count; ++i)
    if (names[i] == value.text) return static_cast<int>(i);
  return -1;
}

}  // namespace moelab
