#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
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

// A number of steps, tokens or bytes: an integer from 0 to 2^53, so that sums of some are integers, too. None
// where the JSON, nlohmann's json or ordered_json, is anything else.
template <class Json>
std::optional<int64_t> as_count(const Json& json);
// The same; throws UserError where there is none.
int64_t count_of(const nlohmann::json& json);

}  // namespace moelab
