#pragma once
#include <optional>

#include "train/memory/profile/operator_profile.h"
#include "train/memory/profile/snapshot.h"
#include "train/settings/settings.h"

namespace moelab {

// The number of first steps to leave out, because their times and memory are not yet typical: three, or a
// third of a run of fewer than nine steps.
int64_t warm_up_steps(int64_t steps);

// Does what monitor.profile_steps and monitor.snapshot ask for. Writes to run.dir: trace.json, profile.txt
// (the ten operators whose results hold most memory at the peak, also printed) and snapshot-*. Prints to
// standard output. Throws UserError when a file cannot be written.
class Inspector {
 public:
  Inspector(const Settings& settings, c10::Device device);

  // Call around each step. The warm-up counts from `first_step`, the steps taken before this run.
  void before_step(int64_t step, int64_t first_step);
  void after_step(const Reading& reading);
  // Memory ran out in a step; `refusal` is the CPU ledger's.
  void refused(const std::optional<Refusal>& refusal);
  // Call at the end of the run: reports the steps profiled so far, if that has not been done.
  void finish();

 private:
  void end_profile();

  MonitorSettings monitor_;
  int64_t steps_;
  std::filesystem::path folder_;
  c10::Device device_;
  std::optional<Snapshots> snapshots_;
  std::optional<SnapshotSignal> signal_;
  std::optional<OperatorProfile> profile_;
  int64_t profiled_ = 0, last_profiled_ = 0;
  bool profile_done_;
};

}  // namespace moelab
