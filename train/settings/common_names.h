#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moelab {

// What other trainers call the setting, or the preset for a card of that model: "train.micro_batch" for
// batch_size, "gpu-8gb" for "RTX 3070". Case, spaces, dashes and a group in front do not matter. Empty: no
// common name, or none of `candidates`.
std::string by_common_name(std::string_view name, const std::vector<std::string>& candidates);

// The names that it knows, each with ours.
std::span<const std::pair<std::string_view, std::string_view>> common_names();

}  // namespace moelab
