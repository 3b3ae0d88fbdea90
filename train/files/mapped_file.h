#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

#include "train/files/file_descriptor.h"

namespace moelab {

// A regular file mapped read-only into memory for as long as the object lives. The descriptor stays open, so
// that a file that is truncated later is noticed before its lost pages are touched.
class MappedFile {
 public:
  // Throws IoError when the file is missing or unreadable, UserError when it is no regular file. An empty
  // file has no bytes.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Throws UserError when the file no longer has the size that was mapped. Call it before touching bytes that
  // others may take away: pages past a file's new end raise SIGBUS.
  void check_unchanged() const;

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
  std::span<const std::byte> bytes_;
};

}  // namespace moelab
