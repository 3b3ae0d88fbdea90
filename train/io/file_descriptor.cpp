#include "train/io/file_descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace moelab {
namespace fs = std::filesystem;
namespace {

std::string io_message(std::string_view action, const fs::path& path, int code) {
  const char* name = strerrorname_np(code);
  return "cannot " + std::string(action) + " " + path.string() + ": " + std::strerror(code) + " (" +
         (name ? name : std::to_string(code).c_str()) + ")";
}

}  // namespace

IoError::IoError(std::string_view action, const fs::path& path, int code)
    : UserError(io_message(action, path, code)), code(code) {}

FileDescriptor::FileDescriptor(const fs::path& path, int flags) {
  do {
    fd_ = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) throw IoError((flags & O_CREAT) ? "create" : "open", path, errno);
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

int FileDescriptor::release() { return std::exchange(fd_, -1); }

uint64_t regular_file_size(const FileDescriptor& fd, const fs::path& path) {
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) throw IoError("inspect", path, errno);
  if (!S_ISREG(status.st_mode)) throw UserError(path.string() + ": not a regular file");
  return static_cast<uint64_t>(status.st_size);
}

}  // namespace moelab
