#pragma once
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "bench/tradeoff/cases.h"
#include "bench/tradeoff/provenance.h"
#include "bench/tradeoff/record_store.h"
#include "bench/tradeoff/schedule.h"

namespace moelab::tradeoff {

struct SweepOptions {
  std::filesystem::path program;  // moelab
  std::string model;              // as CaseOptions
  int64_t rounds = 0;
  double timeout_seconds = 0;  // of one run
  double budget_seconds = 0;   // no round is begun that would end later than this; 0: no such limit
  std::filesystem::path work;  // a folder for the run at hand; removed at the end
};

// Runs every case in every round, each in a process of its own, but for runs that `store` has already. How a
// run ends is recorded, whatever it is.
class Sweep {
 public:
  Sweep(const SweepOptions& options, std::vector<Case> cases, const Provenance& provenance,
        RecordStore& store, std::ostream& progress);

  // The signal that stopped it, 0 when none did. Needs HeldSignals. The run that a signal cuts off leaves no
  // record.
  int run();

 private:
  RunKey key(const Slot& slot) const;
  std::vector<std::string> command(const Case& one) const;
  bool measure(const Slot& slot);
  void print(const Json& record);
  double seconds_left(int64_t last_round) const;
  bool fits_budget(int64_t round) const;

  SweepOptions options_;
  std::vector<Case> cases_;
  Provenance provenance_;
  RecordStore& store_;
  std::ostream& progress_;
  std::vector<Slot> pending_;
  size_t planned_ = 0;
  double spent_ = 0;  // seconds of runs of this sweep
  size_t ran_ = 0;
};

}  // namespace moelab::tradeoff
