#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace moelab::tradeoff {

// Holds SIGINT, SIGTERM and SIGHUP back for as long as it lives, so that they stop a sweep where it can be
// stopped. Make it before any thread.
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
  int code = 0;  // exit code; 128 + signal where one ended it, as shells have it
  double seconds = 0;
};

// The held signal that has come by now (SIGINT, …), 0: none.
int held_signal();

// Runs a program, in a process group of its own and with `log` for its output, until it ends. Whatever kills
// it here kills its children too; when this process is killed, the program is as well. Needs HeldSignals.
// Throws UserError when it cannot be started.
Exit run_process(const std::vector<std::string>& command, const std::filesystem::path& log,
                 double timeout_seconds);

}  // namespace moelab::tradeoff
