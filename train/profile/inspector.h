#pragma once
#include <optional>

#include "train/config/settings.h"
#include "train/profile/operator_profile.h"
#include "train/profile/snapshot.h"

namespace moelab {

// The first steps of a run, whose times and memory are not yet what they will be: three, or a third of a run
// of fewer than nine.
int64_t warm_up_steps(int64_t steps);

// What monitor.profile_steps and monitor.snapshot ask of one run. It leaves in run.dir: trace.json and
// profile.txt (the ten operators that hold most, also printed), snapshot-*. What it prints goes to standard
// output. Throws UserError when a file cannot be written.
class Inspector {
 public:
  Inspector(const Settings& settings, c10::Device device);

  // Around the steps after the first `first_step`, which count from it.
  void before_step(int64_t step, int64_t first_step);
  void after_step(const Reading& reading);
  // Memory ran out in a step; `refusal`: the CPU ledger's.
  void refused(const std::optional<Refusal>& refusal);
  // The run ends: of the steps that were to be profiled, those that there were.
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
