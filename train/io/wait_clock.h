#pragma once
#include <chrono>

namespace moelab {

// Adds up the wall time in which a thread stood still: until bytes had come from another home, or had gone
// there. For one thread at a time.
class WaitClock {
 public:
  // Counts for as long as it lives.
  class Scope {
   public:
    explicit Scope(WaitClock& clock) : clock_(clock), begin_(std::chrono::steady_clock::now()) {}
    ~Scope() { clock_.waited_ += std::chrono::steady_clock::now() - begin_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    WaitClock& clock_;
    std::chrono::steady_clock::time_point begin_;
  };

  double seconds() const { return std::chrono::duration<double>(waited_).count(); }

 private:
  std::chrono::steady_clock::duration waited_{};
};

}  // namespace moelab
