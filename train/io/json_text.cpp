#include "train/io/json_text.h"

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

}  // namespace moelab
