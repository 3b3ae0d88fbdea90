#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "moe/settings/error.h"

namespace moelab {

// A failed system call. The cause is the machine's state (disk full, bad medium, permissions), not a bug,
// hence a UserError.
struct IoError : UserError {
  // "cannot ACTION PATH: No space left on device (ENOSPC)"
  IoError(std::string_view action, const std::filesystem::path& path, int code);
  int code;  // errno
};

// An open file descriptor, closed by the destructor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  // As ::open, with O_CLOEXEC. Throws IoError.
  FileDescriptor(const std::filesystem::path& path, int flags);
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return fd_; }
  // Returns the descriptor without closing it and gives up ownership.
  int release();

 private:
  int fd_ = -1;
};

// Size in bytes of the regular file behind `fd`. Throws UserError, naming `path`, if it is not a regular
// file.
uint64_t regular_file_size(const FileDescriptor& fd, const std::filesystem::path& path);

}  // namespace moelab
