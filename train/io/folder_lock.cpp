#include "train/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

namespace moelab {

std::optional<FileDescriptor> lock_folder(const std::filesystem::path& folder) {
  FileDescriptor lock(folder, O_RDONLY | O_DIRECTORY);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return std::nullopt;
  return lock;
}

}  // namespace moelab
