#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace moelab {

// Parses JSON of at most `max_depth` levels. Throws UserError, beginning with `where`.
nlohmann::json parse_json(std::string_view text, const std::string& where, int max_depth = 64);

}  // namespace moelab
