#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace moelab {

// For resuming a run after `step`. From a file with one JSON object per line, returns the lines before the
// first whose "step" is above `step` or missing. Empty if the file does not exist.
std::string json_lines_up_to(const std::filesystem::path& file, int64_t step);

}  // namespace moelab
