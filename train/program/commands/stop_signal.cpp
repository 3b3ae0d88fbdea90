#include "train/program/commands/stop_signal.h"

#include <atomic>
#include <csignal>

namespace moelab {
namespace {

std::atomic<int> received_signal = 0;  // written by a signal's handler, read by any thread
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  received_signal = signal;
  std::signal(signal, SIG_DFL);
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
