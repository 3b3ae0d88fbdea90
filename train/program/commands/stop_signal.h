#pragma once

namespace moelab {

// Treats SIGINT and SIGTERM as a request to stop: a flag that training polls between micro-batches.
class StopSignal {
 public:
  // Clears the flag and handles both signals until the process ends, so that a signal during exit does not
  // turn success into failure. A second signal ends the program at once.
  static void listen();

  // The signal's name ("SIGINT"), or null if none has come.
  static const char* received();
};

}  // namespace moelab
