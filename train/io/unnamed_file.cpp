#include "train/io/unnamed_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace moelab {
namespace fs = std::filesystem;
namespace {

bool unsupported(int code) { return code == EINVAL || code == EOPNOTSUPP || code == EISDIR; }

// For file systems without unnamed files: creates a named file and unlinks it. If O_DIRECT is refused
// (EINVAL), the kernel has already created the file, so it is removed.
FileDescriptor open_and_unlink(const fs::path& folder, int flags) {
  const fs::path named = folder / (".moelab-" + std::to_string(::getpid()));
  try {
    FileDescriptor file(named, O_CREAT | O_EXCL | O_RDWR | flags);
    if (::unlink(named.c_str()) != 0) throw IoError("remove", named, errno);
    return file;
  } catch (const IoError& error) {
    if (error.code == EINVAL) ::unlink(named.c_str());
    throw;
  }
}

FileDescriptor open_unnamed(const fs::path& folder, int flags) {
  try {
    return {folder, O_TMPFILE | O_RDWR | flags};
  } catch (const IoError& error) {
    if (!unsupported(error.code)) throw;
  }
  return open_and_unlink(folder, flags);
}

FileDescriptor open_direct(const fs::path& folder) {
  try {
    return open_unnamed(folder, O_DIRECT);
  } catch (const IoError& error) {
    if (error.code != EINVAL) throw;
    return open_unnamed(folder, 0);
  }
}

}  // namespace

UnnamedFile::UnnamedFile(fs::path folder) : folder_(std::move(folder)), file_(open_direct(folder_)) {}

void UnnamedFile::allocate(int64_t offset, int64_t bytes) {
  int code;
  do {
    code = ::fallocate(file_.get(), 0, offset, bytes) == 0 ? 0 : errno;
  } while (code == EINTR);
  if (code == EOPNOTSUPP) code = ::ftruncate(file_.get(), offset + bytes) == 0 ? 0 : errno;
  if (code != 0) throw IoError("reserve " + std::to_string(bytes) + " bytes of a file in", folder_, code);
}

// A nearly full file system, or a file near a size limit, accepts part of a request and refuses the rest at
// the next call, so a partly done request is an error.
void UnnamedFile::check(const FileRequest& request, int64_t done) const {
  if (done == static_cast<int64_t>(request.bytes)) return;
  if (done < 0)
    throw IoError(request.write ? "write to a file in" : "read from a file in", folder_,
                  static_cast<int>(-done));
  const std::string part = std::to_string(done) + " of " + std::to_string(request.bytes) + " bytes ";
  if (request.write)
    throw UserError("cannot write to a file in " + folder_.string() + ": it took " + part +
                    "(no space left, or a limit on the size of files)");
  throw UserError("cannot read back what was written to a file in " + folder_.string() + ": " + part +
                  "came");
}

}  // namespace moelab
