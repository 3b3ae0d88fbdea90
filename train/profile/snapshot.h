#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <string_view>

#include "train/memory/monitor.h"

namespace moelab {

// Turns SIGUSR1 into a flag. One may live at a time.
class SnapshotSignal {
 public:
  SnapshotSignal();
  ~SnapshotSignal();
  SnapshotSignal(const SnapshotSignal&) = delete;
  SnapshotSignal& operator=(const SnapshotSignal&) = delete;

  // True once after each signal, or after several that came meanwhile.
  static bool take();
};

// Snapshots of the device's memory in `folder`. On CUDA they are the caching allocator's,
// snapshot-NAME.pickle, a file for pytorch.org/memory_viz, with the stacks of what was allocated since
// construction; NAME is step-N, or oom where memory ran out, then taken at the moment of the refusal. On the
// CPU they are the ledger's, snapshot-NAME.json: bytes by kind now, and at the peak of each phase of the step
// or, where memory ran out, at the refusal. Throw UserError when a file cannot be written.
class Snapshots {
 public:
  Snapshots(c10::Device device, std::filesystem::path folder);

  // After a step. Returns the file.
  std::filesystem::path take(const Reading& reading) const;
  // After memory ran out; `refusal`: the CPU ledger's. Returns the file.
  std::filesystem::path take_refusal(const std::optional<Refusal>& refusal) const;

 private:
  c10::Device device_;
  std::filesystem::path folder_;
};

}  // namespace moelab
