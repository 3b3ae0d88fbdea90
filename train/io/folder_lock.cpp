#include "train/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

namespace moelab {

std::optional<FileDescriptor> lock_folder(const std::filesystem::path& folder) {
  FileDescriptor lock(folder, O_RDONLY | O_DIRECTORY);
  int code = 0;
  do {
    code = ::flock(lock.get(), LOCK_EX | LOCK_NB);
  } while (code != 0 && errno == EINTR);
  if (code != 0 && errno == EWOULDBLOCK) return std::nullopt;
  return lock;
}

}  // namespace moelab
