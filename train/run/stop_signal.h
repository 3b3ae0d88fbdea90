#pragma once

namespace moelab {

// SIGINT and SIGTERM as a request to stop: a flag that training polls between micro-batches.
class StopSignal {
 public:
  // Clears the flag and takes both signals from now until the process ends: one that comes while the program
  // exits must not turn its success into a death. A second signal ends the program at once.
  static void listen();

  // The signal's name ("SIGINT"), or null while none came.
  static const char* received();
};

}  // namespace moelab
