#pragma once
#include <exception>
#include <string>

namespace moelab {

// The failure that ended a run: the first exception it met.
class RunFailure {
 public:
  // Keeps `error`, which must be the exception that is being handled, if it is the first.
  void note(const std::exception& error);

  // Calls part() and notes what it throws. Returns what that says, on one line; empty: nothing was thrown.
  template <class Part>
  std::string attempt(const Part& part) {
    try {
      part();
      return "";
    } catch (const std::exception& error) {
      note(error);
      return text_of(error);
    }
  }

  // What the failure says, on one line; empty: there is none.
  const std::string& reason() const { return reason_; }
  // Whether memory ran out: the budget's or the system's.
  bool out_of_memory() const { return out_of_memory_; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  static std::string text_of(const std::exception& error);

  std::exception_ptr error_;
  std::string reason_;
  bool out_of_memory_ = false;
};

}  // namespace moelab
