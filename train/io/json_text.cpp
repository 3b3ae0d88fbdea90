#include "train/io/json_text.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "moe/settings/error.h"

namespace moelab {

nlohmann::json parse_json(std::string_view text, const std::string& where, int max_depth) {
  const auto limit_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > max_depth)
      throw UserError(where + ": nested deeper than " + std::to_string(max_depth) + " levels");
    return true;
  };
  try {
    return nlohmann::json::parse(text, limit_depth);
  } catch (const nlohmann::json::parse_error& error) {
    throw UserError(where + ": no JSON at byte " + std::to_string(error.byte));
  } catch (const nlohmann::json::out_of_range&) {
    throw UserError(where + ": a number is too large for JSON's readers");
  }
}

int64_t integer_of(const nlohmann::json& json) {
  const bool beyond = json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX};
  if (!json.is_number_integer() || beyond)
    throw UserError(json.dump(-1, ' ', true).substr(0, 100) + " where an integer is expected");
  return json.get<int64_t>();
}

std::vector<int64_t> integers_of(const nlohmann::json& json) {
  if (!json.is_array()) throw UserError("no list where one of integers is expected");
  std::vector<int64_t> integers;
  for (const nlohmann::json& item : json) integers.push_back(integer_of(item));
  return integers;
}

template <class Json>
std::optional<int64_t> as_count(const Json& json) {
  constexpr uint64_t most = uint64_t{1} << 53;
  // What was not parsed but put together may be signed.
  const bool counts =
      json.is_number_unsigned() || (json.is_number_integer() && json.template get<int64_t>() >= 0);
  if (!counts || json.template get<uint64_t>() > most) return std::nullopt;
  return json.template get<int64_t>();
}
template std::optional<int64_t> as_count(const nlohmann::json&);
template std::optional<int64_t> as_count(const nlohmann::ordered_json&);

int64_t count_of(const nlohmann::json& json) {
  if (const std::optional<int64_t> count = as_count(json)) return *count;
  throw UserError(json.dump(-1, ' ', true).substr(0, 100) + " where a count is expected");
}

}  // namespace moelab
