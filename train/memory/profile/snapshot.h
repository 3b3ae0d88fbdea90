#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <string_view>

#include "train/memory/monitor.h"

namespace moelab {

// Turns SIGUSR1 into a flag. Only one may exist at a time.
class SnapshotSignal {
 public:
  SnapshotSignal();
  ~SnapshotSignal();
  SnapshotSignal(const SnapshotSignal&) = delete;
  SnapshotSignal& operator=(const SnapshotSignal&) = delete;

  // True once after one or more signals since the last call.
  static bool take();
};

// Writes snapshots of the device's memory to `folder`. NAME is step-N, or oom when memory ran out. On CUDA:
// the caching allocator's snapshot-NAME.pickle for pytorch.org/memory_viz, with the call stacks of
// allocations since construction; an oom snapshot is taken at the moment of the refusal. On the CPU: the
// ledger's snapshot-NAME.json, with bytes by kind now and at the peak of each phase of the step, or at the
// refusal. Throws UserError when a file cannot be written.
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
