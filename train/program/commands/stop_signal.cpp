#include "train/program/commands/stop_signal.h"

#include <csignal>

namespace moelab {
namespace {

volatile std::sig_atomic_t received_signal = 0;

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
  return received_signal == SIGINT ? "SIGINT" : received_signal == SIGTERM ? "SIGTERM" : nullptr;
}

}  // namespace moelab
