#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

// The names in a folder of checkpoints.
namespace moelab {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kModelName = "model.safetensors";
inline constexpr std::string_view kOptimizerName = "optimizer.safetensors";
inline constexpr std::string_view kStateName = "state.json";
inline constexpr uint64_t kMaxCheckpointText = uint64_t{1} << 30;  // limit for one text file, in bytes

std::string step_name(int64_t step);  // step-N
// Ends in .tmp-PID: deleted by the next writer.
std::filesystem::path temporary_name(const std::filesystem::path& folder, const std::string& name);
// What crashed writers left in `folder`.
std::vector<std::filesystem::path> leftovers(const std::filesystem::path& folder);
// Renames folder/step-N to the first free name of step-N.SUFFIX, step-N.SUFFIX-2, …, and returns the new
// path.
std::filesystem::path rename_aside(const std::filesystem::path& folder, int64_t step,
                                   const std::string& suffix);

}  // namespace moelab
