#include "train/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "moe/settings/error.h"

namespace moelab {
namespace {

// Opened without waiting, because opening a pipe would block until somebody writes to it.
int open_regular(const std::filesystem::path& path, size_t& size) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw UserError("cannot open " + path.string() + ": " + std::strerror(errno));
  struct stat info {};
  const bool known = ::fstat(descriptor, &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    ::close(descriptor);
    throw UserError(path.string() + ": not a regular file; name a shard of token ids (*.bin)");
  }
  size = static_cast<size_t>(info.st_size);
  return descriptor;
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = open_regular(path_, size_);
  if (size_ == 0) {
    ::close(descriptor_);
    throw UserError(path_.string() + ": empty file; a shard holds at least one 16-bit token id");
  }
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    ::close(descriptor_);
    throw UserError("cannot map " + path_.string() + ": " + std::strerror(error));
  }
  data_ = mapped;
}

MappedFile::~MappedFile() {
  ::munmap(const_cast<void*>(data_), size_);
  ::close(descriptor_);
}

void MappedFile::check_unchanged() const {
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0)
    throw UserError(path_.string() + ": became unreadable: " + std::strerror(errno));
  if (static_cast<size_t>(info.st_size) == size_) return;
  throw UserError(path_.string() + ": changed from " + std::to_string(size_) + " to " +
                  std::to_string(info.st_size) + " bytes while in use; leave shards alone during a run");
}

}  // namespace moelab
