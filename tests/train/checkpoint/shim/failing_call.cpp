// Loaded by LD_PRELOAD. Counts a process's calls on files below a folder and makes one of them fail, once.
// The environment says which:
//   MOELAB_FAULT_FOLDER   the folder, an absolute path
//   MOELAB_FAULT_LOG      a file that gets a line "NAME PATH" for each call
//   MOELAB_FAULT_CALL     the number of the call that fails, from 1; 0: none
//   MOELAB_FAULT_ERRNO    the error that it fails with; 0: none, a write or read that takes half of its
//   bytes;
//                         -1: none, the process stops (SIGSTOP) and makes the call when it is continued
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <string>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// The function that the program would have called without this library.
template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

struct Plan {
  std::string folder = std::getenv("MOELAB_FAULT_FOLDER");
  long call = std::atol(std::getenv("MOELAB_FAULT_CALL"));
  int error = std::atoi(std::getenv("MOELAB_FAULT_ERRNO"));
  int log = real<int(const char*, int, ...)>("open")(std::getenv("MOELAB_FAULT_LOG"),
                                                     O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
};

std::string path_of(int fd) {
  char path[PATH_MAX];
  const ssize_t size = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return size < 0 ? "" : std::string(path, static_cast<size_t>(size));
}

std::string path_at(int folder, const char* name) {
  return name[0] == '/' || folder == AT_FDCWD ? name : path_of(folder) + "/" + name;
}

bool has_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

// Notes the call. Whether it is the one that fails.
bool chosen(const char* name, const std::string& path) {
  static const Plan plan;
  static std::atomic<long> calls{0};
  if (path != plan.folder && !path.starts_with(plan.folder + "/")) return false;
  const std::string line = std::string(name) + " " + path + "\n";
  if (real<ssize_t(int, const void*, size_t)>("write")(plan.log, line.data(), line.size()) < 0) std::abort();
  if (++calls != plan.call) return false;
  if (plan.error == -1) return std::raise(SIGSTOP) != 0;
  errno = plan.error;
  return true;
}

}  // namespace

EXPORTED int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = has_mode(flags) ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (chosen("open", path)) return -1;
  return real<int(const char*, int, ...)>("open")(path, flags, mode);
}

EXPORTED int openat(int folder, const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = has_mode(flags) ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (chosen("openat", path_at(folder, name))) return -1;
  return real<int(int, const char*, int, ...)>("openat")(folder, name, flags, mode);
}

EXPORTED ssize_t write(int fd, const void* data, size_t size) {
  const bool fails = fd > STDERR_FILENO && chosen("write", path_of(fd));
  if (fails && errno != 0) return -1;
  return real<ssize_t(int, const void*, size_t)>("write")(fd, data, fails ? (size + 1) / 2 : size);
}

EXPORTED ssize_t read(int fd, void* data, size_t size) {
  const bool fails = fd > STDERR_FILENO && chosen("read", path_of(fd));
  if (fails && errno != 0) return -1;
  return real<ssize_t(int, void*, size_t)>("read")(fd, data, fails ? (size + 1) / 2 : size);
}

EXPORTED void* mmap(void* at, size_t size, int access, int flags, int fd, off_t offset) noexcept {
  if (fd >= 0 && chosen("mmap", path_of(fd))) return MAP_FAILED;
  return real<void*(void*, size_t, int, int, int, off_t)>("mmap")(at, size, access, flags, fd, offset);
}

EXPORTED int flock(int fd, int operation) noexcept {
  if (chosen("flock", path_of(fd))) return -1;
  return real<int(int, int)>("flock")(fd, operation);
}

EXPORTED int fstat(int fd, struct stat* into) noexcept {
  if (chosen("fstat", path_of(fd))) return -1;
  return real<int(int, struct stat*)>("fstat")(fd, into);
}

EXPORTED int fsync(int fd) {
  if (chosen("fsync", path_of(fd))) return -1;
  return real<int(int)>("fsync")(fd);
}

// Linux closes the descriptor even when it says that this failed.
EXPORTED int close(int fd) {
  const bool fails = chosen("close", path_of(fd));
  const int error = errno;
  const int closed = real<int(int)>("close")(fd);
  if (!fails) return closed;
  errno = error;
  return -1;
}

EXPORTED int mkdir(const char* path, mode_t mode) noexcept {
  if (chosen("mkdir", path)) return -1;
  return real<int(const char*, mode_t)>("mkdir")(path, mode);
}

EXPORTED int rename(const char* from, const char* to) noexcept {
  if (chosen("rename", from)) return -1;
  return real<int(const char*, const char*)>("rename")(from, to);
}

EXPORTED int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                       unsigned flags) noexcept {
  if (chosen("renameat2", path_at(from_folder, from))) return -1;
  return real<int(int, const char*, int, const char*, unsigned)>("renameat2")(from_folder, from, to_folder,
                                                                              to, flags);
}

EXPORTED int unlinkat(int folder, const char* name, int flags) noexcept {
  if (chosen("unlinkat", path_at(folder, name))) return -1;
  return real<int(int, const char*, int)>("unlinkat")(folder, name, flags);
}

EXPORTED DIR* fdopendir(int fd) {
  if (chosen("fdopendir", path_of(fd))) return nullptr;
  return real<DIR*(int)>("fdopendir")(fd);
}

EXPORTED dirent* readdir(DIR* folder) {
  if (chosen("readdir", path_of(::dirfd(folder)))) return nullptr;
  return real<dirent*(DIR*)>("readdir")(folder);
}

EXPORTED int stat(const char* path, struct stat* into) noexcept {
  if (chosen("stat", path)) return -1;
  return real<int(const char*, struct stat*)>("stat")(path, into);
}

EXPORTED int lstat(const char* path, struct stat* into) noexcept {
  if (chosen("lstat", path)) return -1;
  return real<int(const char*, struct stat*)>("lstat")(path, into);
}
