#pragma once
#include <filesystem>
#include <string>

namespace moelab {

// Writes the file through a temporary one beside it, so that a reader sees the old text or the new one.
// Throws UserError.
void write_whole(const std::filesystem::path& path, const std::string& text);

}  // namespace moelab
