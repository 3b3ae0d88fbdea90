#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>

namespace moelab {

// Wall time of what a rank exchanges with others. Threads may share it.
class ExchangeClock {
 public:
  // Seconds in which at least one exchange was under way, from its start until its result was taken; and
  // those in which a thread did nothing but wait for a result.
  struct Seconds {
    double under_way = 0, waited = 0;
  };

  void started() {
    const std::lock_guard lock(mutex_);
    if (under_way_++ == 0) since_ = Clock::now();
  }
  // An exchange's result was taken, after a wait that began at `wait`.
  void taken(std::chrono::steady_clock::time_point wait) {
    const std::lock_guard lock(mutex_);
    const Clock::time_point now = Clock::now();
    seconds_.waited += std::chrono::duration<double>(now - wait).count();
    if (--under_way_ == 0) seconds_.under_way += std::chrono::duration<double>(now - since_).count();
  }
  Seconds seconds() const {
    const std::lock_guard lock(mutex_);
    return seconds_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  mutable std::mutex mutex_;
  Seconds seconds_;
  int64_t under_way_ = 0;
  Clock::time_point since_;
};

}  // namespace moelab
