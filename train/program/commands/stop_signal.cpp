#include "train/program/commands/stop_signal.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>

namespace moelab {
namespace {

std::atomic<int> received_signal = 0;  // written by a signal's handler, read by any thread
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  constexpr char kText[] = "\nstopping; a second signal ends this at once, without a checkpoint\n";
  received_signal = signal;
  std::signal(signal, SIG_DFL);
  if (signal != SIGINT) return;  // nobody waits at the keyboard
  const int before = errno;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
  errno = before;
}

}  // namespace

void StopSignal::listen() {
  received_signal = 0;
  std::signal(SIGINT, note);
  std::signal(SIGTERM, note);
}

const char* StopSignal::received() {
  const int signal = received_signal;
  return signal == SIGINT ? "SIGINT" : signal == SIGTERM ? "SIGTERM" : nullptr;
}

}  // namespace moelab
