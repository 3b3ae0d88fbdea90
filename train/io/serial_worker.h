#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace moelab {

// A thread that runs tasks one after another.
class SerialWorker {
 public:
  SerialWorker();
  // Waits until all tasks are done.
  ~SerialWorker();
  SerialWorker(const SerialWorker&) = delete;
  SerialWorker& operator=(const SerialWorker&) = delete;

  // Runs `task` after those posted before; first waits until fewer than `most` are unfinished. The future
  // becomes ready when the task has run and its captures are destroyed, and throws what the task threw. After
  // a task has thrown, every later post() throws the same, because that task's work was not done.
  std::shared_future<void> post(std::function<void()> task, size_t most = SIZE_MAX);

 private:
  struct Task {
    std::function<void()> work;
    std::promise<void> done;
  };
  void run();
  void finish(Task task);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  size_t unfinished_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace moelab
