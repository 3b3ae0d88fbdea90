#pragma once

namespace moelab {

// Turns SIGINT and SIGTERM into a flag that the training loop polls between micro-batches. A second signal
// ends the program at once, as it would have without this. One may live at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal's name ("SIGINT"), or null while none came.
  static const char* received();
};

}  // namespace moelab
