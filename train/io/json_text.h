#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace moelab {

// Parses JSON of at most `max_depth` levels. Throws UserError, beginning with `where`.
nlohmann::json parse_json(std::string_view text, const std::string& where, int max_depth = 64);

// An integer of 64 bits, and a list of such. Throw UserError where the JSON is anything else: nlohmann's own
// get() takes every number, even one beyond an integer's range.
int64_t integer_of(const nlohmann::json& json);
std::vector<int64_t> integers_of(const nlohmann::json& json);

}  // namespace moelab
