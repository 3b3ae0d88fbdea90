#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace moelab {

// A tokenizer.json of the 256 bytes, in GPT-2's order: id 0 is '!'. Tests modify it.
nlohmann::json base_tokenizer();

}  // namespace moelab
