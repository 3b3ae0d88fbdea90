#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "train/checkpoint/hash.h"
#include "train/files/file_descriptor.h"

// Files for data that must survive a crash: every failed system call is an IoError that names the file and
// the errno, short writes are continued, and what is to last is fsynced, folders too. The contract with the
// kernel is POSIX's: a file is durable after its own fsync, its name after its folder's.
namespace moelab {

// What was written or read: its size in bytes and its xxh3-128 (32 lower-case hexadecimal digits).
struct FileDigest {
  uint64_t size = 0;
  std::string hash;
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

// A new file, hashed as it is written. It must not exist yet.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  void write(std::span<const std::byte> bytes);
  // fsyncs and closes; without this call the file is closed but nothing is promised.
  FileDigest finish();

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
  Xxh3 hash_;
  uint64_t size_ = 0;
};

// Creates the file `path` with `text`, durable but for its name (sync_folder).
FileDigest write_text_file(const std::filesystem::path& path, std::string_view text);
// The whole file; more than `max_bytes` is a UserError.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes);
// Size and hash by read(2), so that a bad medium is an IoError and not the SIGBUS of a mapping.
FileDigest digest_file(const std::filesystem::path& path);

// Makes the names in a folder durable.
void sync_folder(const std::filesystem::path& folder);
// Creates the folder and those above it, durably. No error when it exists.
void create_folders(const std::filesystem::path& folder);
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Renames `from` to `to`; a folder already there takes the name `from` in the same instant. False when there
// was none.
bool exchange_or_rename(const std::filesystem::path& from, const std::filesystem::path& to);
// Deletes a file or a folder with all that it holds. No error when it doesn't exist.
void remove_tree(const std::filesystem::path& path);

}  // namespace moelab
