#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace moelab {

// A regular file mapped read-only into memory for as long as the object lives. The descriptor stays open, so
// that a file that is truncated later is noticed before its lost pages are touched.
class MappedFile {
 public:
  // Throws UserError when the file is missing, unreadable, empty or no regular file.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

  // Throws UserError when the file no longer has the size that was mapped. Call it before touching the bytes:
  // pages past a file's new end raise SIGBUS.
  void check_unchanged() const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  const void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace moelab
