#pragma once
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace moelab {

// A program that this one has started, of which it reads what is written to stdout and stderr. Killed by the
// destructor.
class ChildProcess {
 public:
  // The program and its arguments; its stdin is empty. Throws IoError when it cannot be started.
  explicit ChildProcess(const std::vector<std::string>& command);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The next line, without its end. None: its output has ended, or `patience` seconds have passed without a
  // whole line, which is_silent() then says.
  std::optional<std::string> read_line(double patience);
  bool is_silent() const { return silent_; }

  // Kills it, unless it has ended, and says how it ended: its exit code, or minus the signal that ended it.
  int end();
  // As end(), but lets it end by itself: its output has ended.
  int wait();

 private:
  std::optional<std::string> take_line();

  pid_t pid_ = 0;  // 0: its end is known
  int status_ = 0;
  int output_ = -1;  // the end of a pipe
  std::string unread_;
  bool silent_ = false;
};

}  // namespace moelab
