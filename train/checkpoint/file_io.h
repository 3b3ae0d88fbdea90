#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "train/checkpoint/hash.h"
#include "train/io/file_descriptor.h"

// Files for data that must survive a crash. Every failed system call throws an IoError with the file and
// errno; short writes are continued; files and folders are fsynced. POSIX semantics: a file's content is
// durable after its own fsync, its name after its folder's fsync.
namespace moelab {

// A file's size in bytes and its xxh3-128 (32 lower-case hexadecimal digits).
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
  // fsyncs and closes. Without this call the file is closed, but may not survive a crash.
  FileDigest finish();

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
  Xxh3 hash_;
  uint64_t size_ = 0;
};

// Creates the file `path` with `text` and fsyncs it; its name becomes durable with sync_folder.
FileDigest write_text_file(const std::filesystem::path& path, std::string_view text);
// The whole file; throws UserError if it has more than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes);
// Size and hash, by read(2): a bad medium then gives an IoError rather than a mapping's SIGBUS.
FileDigest digest_file(const std::filesystem::path& path);

// Makes the names in a folder durable.
void sync_folder(const std::filesystem::path& folder);
// Creates the folder and its parents, durably. No error when it exists.
void create_folders(const std::filesystem::path& folder);
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Renames `from` to `to`; if `to` exists, exchanges the two names atomically. False when `to` did not exist.
bool exchange_or_rename(const std::filesystem::path& from, const std::filesystem::path& to);
// Deletes a file, or a folder with its content. No error when it doesn't exist.
void remove_tree(const std::filesystem::path& path);

}  // namespace moelab
