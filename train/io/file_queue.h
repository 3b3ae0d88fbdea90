#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace moelab {

// A read or write of a file.
struct FileRequest {
  int fd;
  bool write;
  std::byte* data;
  size_t bytes;
  int64_t offset;
  int64_t tag;  // chosen by the caller, returned in the result
};

struct FileResult {
  int64_t tag;
  int64_t bytes;  // bytes done, possibly fewer than requested; -errno when it failed
};

class FileQueue {
 public:
  virtual ~FileQueue() = default;
  // `request.data` must stay valid until the request's result is taken. At most `depth` requests at a time.
  virtual void submit(const FileRequest& request) = 0;
  // Waits for one of the submitted requests, whichever ends first.
  virtual FileResult wait() = 0;
};

// io_uring if built with liburing and the kernel allows it, otherwise make_thread_queue().
std::unique_ptr<FileQueue> make_file_queue(unsigned depth);
// A queue that runs pread and pwrite on its own thread.
std::unique_ptr<FileQueue> make_thread_queue();

}  // namespace moelab
