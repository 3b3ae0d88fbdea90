#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "moe/settings/error.h"
#include "train/checkpoint/hash.h"

// Files for data that must survive a crash: every failed system call is an IoError that names the file and
// the errno, short writes are continued, and what is to last is fsynced, folders too. The contract with the
// kernel is POSIX's: a file is durable after its own fsync, its name after its folder's.
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

// A file's bytes, mapped read-only for as long as the object lives.
class FileMapping {
 public:
  explicit FileMapping(const std::filesystem::path& path);
  ~FileMapping();
  FileMapping(FileMapping&& other) noexcept;
  FileMapping& operator=(FileMapping&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
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
