#pragma once
#include <exception>
#include <string>

namespace moelab {

// The failure that ended a run: the first exception it met.
class RunFailure {
 public:
  // Keeps `error` if it is the first; it must be the exception being handled.
  void note(const std::exception& error);

  // Calls part(), and notes what it throws. Returns the exception's message, on one line; empty: none was
  // thrown.
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

  // The failure's message, on one line; empty: there is no failure.
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
