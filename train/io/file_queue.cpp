#include "train/io/file_queue.h"

#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#ifdef MOELAB_WITH_URING
#include <liburing.h>
#endif

namespace moelab {
namespace {

int64_t perform(const FileRequest& r) {
  ssize_t done;
  do {
    done = r.write ? ::pwrite(r.fd, r.data, r.bytes, r.offset) : ::pread(r.fd, r.data, r.bytes, r.offset);
  } while (done < 0 && errno == EINTR);
  return done < 0 ? -errno : done;
}

class ThreadQueue : public FileQueue {
 public:
  ThreadQueue() : thread_([this] { work(); }) {}
  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void submit(const FileRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    changed_.notify_all();
  }

  FileResult wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !results_.empty(); });
    const FileResult result = results_.front();
    results_.pop_front();
    return result;
  }

 private:
  void work() {
    while (const std::optional<FileRequest> request = next()) {
      const int64_t done = perform(*request);
      {
        const std::lock_guard lock(mutex_);
        results_.push_back({request->tag, done});
      }
      changed_.notify_all();
    }
  }

  std::optional<FileRequest> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closing_ || !requests_.empty(); });
    if (requests_.empty()) return std::nullopt;
    const FileRequest request = requests_.front();
    requests_.pop_front();
    return request;
  }

  std::mutex mutex_;  // guards the next three members
  std::condition_variable changed_;
  std::deque<FileRequest> requests_;
  std::deque<FileResult> results_;
  bool closing_ = false;
  std::thread thread_;
};

#ifdef MOELAB_WITH_URING
class UringQueue : public FileQueue {
 public:
  // Null if the kernel refuses (containers often do).
  static std::unique_ptr<FileQueue> open(unsigned depth) {
    auto queue = std::unique_ptr<UringQueue>(new UringQueue);
    queue->open_ = io_uring_queue_init(depth, &queue->ring_, 0) == 0;
    if (!queue->open_) return nullptr;
    return queue;
  }
  ~UringQueue() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  void submit(const FileRequest& r) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    const auto bytes = static_cast<unsigned>(r.bytes);
    const auto offset = static_cast<uint64_t>(r.offset);
    if (r.write) {
      io_uring_prep_write(entry, r.fd, r.data, bytes, offset);
    } else {
      io_uring_prep_read(entry, r.fd, r.data, bytes, offset);
    }
    io_uring_sqe_set_data64(entry, static_cast<uint64_t>(r.tag));
    int submitted;
    do {
      submitted = io_uring_submit(&ring_);
    } while (submitted == -EINTR || submitted == -EAGAIN);
    if (submitted != 1) throw std::system_error(-submitted, std::generic_category(), "io_uring_submit");
  }

  FileResult wait() override {
    io_uring_cqe* entry = nullptr;
    int error;
    do {
      error = io_uring_wait_cqe(&ring_, &entry);
    } while (error == -EINTR);
    if (error != 0) throw std::system_error(-error, std::generic_category(), "io_uring_wait_cqe");
    const FileResult result{static_cast<int64_t>(io_uring_cqe_get_data64(entry)), entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return result;
  }

 private:
  UringQueue() = default;
  io_uring ring_{};
  bool open_ = false;
};
#endif

}  // namespace

std::unique_ptr<FileQueue> make_thread_queue() { return std::make_unique<ThreadQueue>(); }

std::unique_ptr<FileQueue> make_file_queue([[maybe_unused]] unsigned depth) {
#ifdef MOELAB_WITH_URING
  if (auto queue = UringQueue::open(depth)) return queue;
#endif
  return make_thread_queue();
}

}  // namespace moelab
