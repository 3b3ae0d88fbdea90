#pragma once
#include <atomic>
#include <cstdint>

namespace moelab {

// Lets tasks that run concurrently add to a shared result one after another, in a fixed order, whichever is
// done first.
class OrderedSection {
 public:
  class Turn {
   public:
    Turn(OrderedSection& section, int64_t place) : section_(section), place_(place) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {  // also when its task failed, or the tasks after it would wait for ever
      await();
      section_.now_.store(place_ + 1, std::memory_order_release);
      section_.now_.notify_all();
    }
    void await() const {
      for (int64_t now; (now = section_.now_.load(std::memory_order_acquire)) != place_;)
        section_.now_.wait(now);
    }

   private:
    OrderedSection& section_;
    int64_t place_;
  };

 private:
  std::atomic<int64_t> now_{0};
};

}  // namespace moelab
