// Loaded by LD_PRELOAD. write(2) accepts at most 1000 bytes per call, and every third call is first
// interrupted by a "signal"; POSIX allows both.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

extern "C" __attribute__((visibility("default"))) ssize_t write(int fd, const void* data, size_t size) {
  static std::atomic<int> calls{0};
  if (fd > STDERR_FILENO && ++calls % 3 == 0) {
    errno = EINTR;
    return -1;
  }
  return syscall(SYS_write, fd, data, fd > STDERR_FILENO ? std::min<size_t>(size, 1000) : size);
}
