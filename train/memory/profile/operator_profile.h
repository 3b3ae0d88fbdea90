#pragma once
#include <c10/core/Device.h>

#include <filesystem>

#include "train/memory/profile/operator_memory.h"

namespace moelab {

// Runs LibTorch's profiler (kineto) from construction until finish(): records operators and allocations on
// `device`, on this thread and on autograd's. Results don't change, but execution is slower. Only one may
// exist at a time; construct, finish and destroy it on one thread.
class OperatorProfile {
 public:
  explicit OperatorProfile(c10::Device device);
  ~OperatorProfile();  // drops an unfinished recording
  OperatorProfile(const OperatorProfile&) = delete;
  OperatorProfile& operator=(const OperatorProfile&) = delete;

  // Ends the recording and writes the trace in Chrome's trace event format (JSON), which ui.perfetto.dev and
  // chrome://tracing open. Throws UserError when it cannot be written.
  OperatorTable finish(const std::filesystem::path& trace);

 private:
  c10::Device device_;
  int64_t held_;
  bool recording_ = true;
};

}  // namespace moelab
