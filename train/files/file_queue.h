#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace moelab {

// A read or write of a file, at most so many under way at a time as the queue was made for.
struct FileRequest {
  int fd;
  bool write;
  std::byte* data;
  size_t bytes;
  int64_t offset;
  int64_t tag;  // the caller's name for it
};

struct FileResult {
  int64_t tag;
  int64_t bytes;  // done, possibly fewer than asked for; -errno when it failed
};

class FileQueue {
 public:
  virtual ~FileQueue() = default;
  // `request.data` stays valid until the request's result was taken.
  virtual void submit(const FileRequest& request) = 0;
  // Waits for one of the requests under way, whichever ends first.
  virtual FileResult wait() = 0;
};

// io_uring where this was built with liburing and the kernel lets it; else pread and pwrite on a thread of
// its own.
std::unique_ptr<FileQueue> make_file_queue(unsigned depth);
// The latter in any case.
std::unique_ptr<FileQueue> make_thread_queue();

}  // namespace moelab
