#include "train/checkpoint/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <vector>

namespace moelab {
namespace fs = std::filesystem;
namespace {

constexpr size_t kReadChunk = size_t{1} << 20;
constexpr size_t kWriteChunk = size_t{1} << 30;  // Linux writes at most 2 GiB less a page at once

// Reads up to `size` bytes; fewer only at the end of the file.
size_t read_fully(const FileDescriptor& fd, const fs::path& path, char* into, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(fd.get(), into + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw IoError("read", path, errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

}  // namespace

OutputFile::OutputFile(const fs::path& path) : path_(path), fd_(path, O_WRONLY | O_CREAT | O_EXCL) {}

void OutputFile::write(std::span<const std::byte> bytes) {
  hash_.update(bytes);
  size_ += bytes.size();
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_.get(), bytes.data(), std::min(bytes.size(), kWriteChunk));
    if (n < 0 && errno == EINTR) continue;
    // A write of 0 bytes would be repeated for ever.
    if (n <= 0) throw IoError("write", path_, n < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

FileDigest OutputFile::finish() {
  // No retry: after a failed fsync the kernel may have dropped the pages, and a second fsync would report a
  // false success.
  if (::fsync(fd_.get()) != 0) throw IoError("flush to disk", path_, errno);
  // No retry: Linux releases the descriptor even when close fails.
  if (::close(fd_.release()) != 0) throw IoError("close", path_, errno);
  return {size_, hash_.hex()};
}

FileDigest write_text_file(const fs::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(std::as_bytes(std::span(text)));
  return file.finish();
}

std::string read_text_file(const fs::path& path, uint64_t max_bytes) {
  const FileDescriptor fd(path, O_RDONLY);
  const uint64_t size = regular_file_size(fd, path);
  if (size > max_bytes) {
    throw UserError(path.string() + ": " + std::to_string(size) + " bytes; at most " +
                    std::to_string(max_bytes) + " are read");
  }
  std::string text(size, '\0');
  text.resize(read_fully(fd, path, text.data(), size));
  return text;
}

FileDigest digest_file(const fs::path& path) {
  const FileDescriptor fd(path, O_RDONLY);
  regular_file_size(fd, path);  // refuses anything but a regular file
  std::vector<char> buffer(kReadChunk);
  Xxh3 hash;
  uint64_t size = 0;
  while (const size_t n = read_fully(fd, path, buffer.data(), buffer.size())) {
    hash.update(std::as_bytes(std::span(buffer.data(), n)));
    size += n;
  }
  return {size, hash.hex()};
}

void sync_folder(const fs::path& folder) {
  FileDescriptor fd(folder, O_RDONLY | O_DIRECTORY);
  if (::fsync(fd.get()) != 0) throw IoError("flush folder", folder, errno);
  if (::close(fd.release()) != 0) throw IoError("close folder", folder, errno);
}

void create_folders(const fs::path& folder) {
  std::error_code unknown;  // ignored: mkdir reports the problem better
  if (fs::is_directory(folder, unknown)) return;
  const fs::path parent = fs::absolute(folder).parent_path();
  if (parent != folder) create_folders(parent);
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    throw IoError("create folder", folder, errno);
  }
  sync_folder(parent);
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw IoError("rename to " + to.string() + ":", from, errno);
}

bool exchange_or_rename(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return true;
  const bool absent = errno == ENOENT;
  // EINVAL, ENOSYS: the file system cannot exchange names. The old folder then takes another name for a
  // moment.
  const bool unsupported = errno == EINVAL || errno == ENOSYS;
  if (!absent && !unsupported) throw IoError("rename to " + to.string() + ":", from, errno);
  std::error_code unknown;
  if (absent || !fs::exists(to, unknown)) {
    rename_path(from, to);
    return false;
  }
  const fs::path aside = from.string() + "-old";
  rename_path(to, aside);
  rename_path(from, to);
  rename_path(aside, from);
  return true;
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw IoError("delete", path, error.value());
}

}  // namespace moelab
