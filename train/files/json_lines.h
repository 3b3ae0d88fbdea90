#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace moelab {

// Of a file with a JSON object on each line the lines up to the first whose "step" is above `step`, or that
// is none: what a run resumed after that step goes on from. Empty for a file that is not there.
std::string json_lines_up_to(const std::filesystem::path& file, int64_t step);

}  // namespace moelab
