#pragma once
#include <filesystem>
#include <optional>

#include "train/io/file_descriptor.h"

namespace moelab {

// A lock on a folder that exists, held while the descriptor is open and gone with the process; none: another
// descriptor, of any process, holds it. File systems without locks guard nothing. Throws IoError when the
// folder cannot be opened.
std::optional<FileDescriptor> lock_folder(const std::filesystem::path& folder);

}  // namespace moelab
