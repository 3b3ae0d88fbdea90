#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

#include "train/io/file_descriptor.h"

namespace moelab {

// A regular file, mapped read-only for the object's lifetime. The descriptor stays open, so that
// check_unchanged() notices a truncated file before its lost pages are touched.
class MappedFile {
 public:
  // Throws IoError when the file is missing or unreadable, UserError when it is not a regular file. An empty
  // file has no bytes.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Throws UserError when the file no longer has the size that was mapped. Call it before touching bytes that
  // other programs may truncate: pages past a file's new end raise SIGBUS.
  void check_unchanged() const;

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
  std::span<const std::byte> bytes_;
};

}  // namespace moelab
