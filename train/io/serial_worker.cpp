#include "train/io/serial_worker.h"

#include <utility>

namespace moelab {

SerialWorker::SerialWorker() : thread_([this] { run(); }) {}

SerialWorker::~SerialWorker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_future<void> SerialWorker::post(std::function<void()> task, size_t most) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return unfinished_ < most; });
  if (failure_) std::rethrow_exception(failure_);
  ++unfinished_;
  std::shared_future<void> done = tasks_.emplace_back(Task{std::move(task), {}}).done.get_future().share();
  changed_.notify_all();
  return done;
}

void SerialWorker::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    finish(std::move(task));
    lock.lock();
    --unfinished_;
    changed_.notify_all();
  }
}

void SerialWorker::finish(Task task) {
  try {
    task.work();
    task.work = nullptr;
  } catch (...) {
    task.work = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    return task.done.set_exception(std::current_exception());
  }
  task.done.set_value();
}

}  // namespace moelab
