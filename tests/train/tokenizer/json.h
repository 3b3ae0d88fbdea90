#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace moelab {

// A tokenizer.json of the 256 bytes in an order of their own: id 0 is '!', as in GPT-2's vocabulary. Tests
// change it.
nlohmann::json base_tokenizer();

}  // namespace moelab
