#pragma once
#include <unistd.h>

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
// Of a rank among several: model-2.safetensors, and manifest-2.json while the checkpoint is being written.
std::string name_of_rank(std::string_view name, int64_t rank);
// Whether `file` is `name`, or name_of_rank() of it.
bool is_name(std::string_view file, std::string_view name);
// Ends in .tmp-PID: deleted by the next writer.
std::filesystem::path temporary_name(const std::filesystem::path& folder, const std::string& name,
                                     int64_t pid = getpid());
// What crashed writers left in `folder`.
std::vector<std::filesystem::path> leftovers(const std::filesystem::path& folder);
// Renames folder/step-N to the first free name of step-N.SUFFIX, step-N.SUFFIX-2, …, and returns the new
// path.
std::filesystem::path rename_aside(const std::filesystem::path& folder, int64_t step,
                                   const std::string& suffix);

}  // namespace moelab
