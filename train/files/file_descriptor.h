#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "moe/settings/error.h"

namespace moelab {

// A failed system call. The machine's state is to blame (disk full, bad medium, permissions), not this
// program: hence a UserError.
struct IoError : UserError {
  // "cannot ACTION PATH: No space left on device (ENOSPC)"
  IoError(std::string_view action, const std::filesystem::path& path, int code);
  int code;  // errno
};

// An open descriptor, closed with its owner.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  // As ::open, O_CLOEXEC added. Throws IoError.
  FileDescriptor(const std::filesystem::path& path, int flags);
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return fd_; }
  // Gives the descriptor up without closing it.
  int release();

 private:
  int fd_ = -1;
};

// Size in bytes of the regular file behind `fd`. Throws UserError, naming `path`, when it is none.
uint64_t regular_file_size(const FileDescriptor& fd, const std::filesystem::path& path);

}  // namespace moelab
