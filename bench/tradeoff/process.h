#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace moelab::tradeoff {

// While one lives, SIGINT, SIGTERM and SIGHUP are blocked, so that a sweep handles them where it can stop.
// Create it before any thread.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
};

// How a process ended.
struct Exit {
  enum class Why {
    exited,
    signalled,
    timeout,  // it ran too long and was killed
    stopped   // one of the held signals came and it was killed
  };
  Why why = Why::exited;
  int code = 0;  // exit code; 128 + signal if a signal ended it, as in shells
  double seconds = 0;
  int64_t resident_bytes = 0;  // the largest that it, or a process that it waited for, was in memory
};

// The blocked signal that is pending (SIGINT, …); 0: none.
int held_signal();

// Runs a program to its end, in its own process group, with its output in `log` and what it writes to stderr
// in `errors`, or in `log` as well if that is empty. Killing it (timeout, signal) kills its children too; if
// this process dies, the program is killed as well. Needs HeldSignals. Throws UserError when it cannot be
// started.
Exit run_process(const std::vector<std::string>& command, const std::filesystem::path& log,
                 double timeout_seconds, const std::filesystem::path& errors = {});

}  // namespace moelab::tradeoff
