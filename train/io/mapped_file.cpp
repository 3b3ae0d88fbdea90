#include "train/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <utility>

namespace moelab {

// O_NONBLOCK, because opening a pipe would block until somebody writes to it.
MappedFile::MappedFile(std::filesystem::path path)
    : path_(std::move(path)), fd_(path_, O_RDONLY | O_NONBLOCK) {
  const size_t size = regular_file_size(fd_, path_);
  if (size == 0) return;  // mmap refuses a length of zero
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_.get(), 0);
  if (address == MAP_FAILED) throw IoError("map", path_, errno);
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::check_unchanged() const {
  const size_t size = regular_file_size(fd_, path_);
  if (size == bytes_.size()) return;
  throw UserError(path_.string() + ": changed from " + std::to_string(bytes_.size()) + " to " +
                  std::to_string(size) + " bytes while in use; leave it alone during a run");
}

}  // namespace moelab
