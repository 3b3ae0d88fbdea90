#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace moelab {

// For resuming a run after `step`. From a file with one JSON object per line, returns the lines before the
// first whose "step" is above `step` or missing. Empty if the file does not exist.
std::string json_lines_up_to(const std::filesystem::path& file, int64_t step);

// The "step" of the file's last whole line; none: there is no such line, or no file.
std::optional<int64_t> last_step(const std::filesystem::path& file);

}  // namespace moelab
