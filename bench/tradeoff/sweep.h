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
  double timeout_seconds = 0;     // of one run
  // No round but the first is begun that would end later than this, and no run at all; 0: no such limit.
  double budget_seconds = 0;
  std::filesystem::path work;  // a folder for the run at hand
  // A case whose relative_spread passes `spread` is run in `extra_rounds` more at most, with what it is held
  // against. Where the last one ends no better, its record has "noisy": true.
  double spread = 0;
  int64_t extra_rounds = 0;
};

// Cases that are run side by side.
struct SweepPart {
  std::string name;  // as PlanPart
  int64_t rounds = 0;
  std::vector<Case> cases;
  std::vector<std::vector<size_t>> groups = {};  // groups_of() the cases; a Sweep makes them
};

// Part after part, runs every case as often as it has rounds, each in a process of its own, but for runs that
// `store` has already. How a run ends is recorded, whatever it is.
class Sweep {
 public:
  Sweep(const SweepOptions& options, std::vector<SweepPart> parts, const Provenance& provenance,
        RecordStore& store, std::ostream& progress);

  // The signal that stopped it, 0 when none did. Needs HeldSignals. The run that a signal cuts off leaves no
  // record.
  int run();

 private:
  void announce();
  bool run_part(const SweepPart& part);
  std::vector<Slot> pending(const SweepPart& part, int64_t pass) const;
  std::vector<Slot> slots_of_noisy(const SweepPart& part, int64_t pass) const;
  std::vector<double> ratios(const SweepPart& part, const Case& one, int64_t passes) const;
  bool stays_noisy(const SweepPart& part, const Case& one, int64_t round, const Json& record) const;

  RunKey key(const SweepPart& part, const Case& one, int64_t round) const;
  std::vector<std::string> command(const Case& one) const;
  bool measure(const SweepPart& part, const Slot& slot);
  Json record_of(const SweepPart& part, const Slot& slot) const;
  void print(const Json& record);

  double seconds_of(const SweepPart& part, const std::vector<Slot>& slots) const;
  double seconds_left() const;
  bool fits_budget(double seconds) const;

  SweepOptions options_;
  std::vector<SweepPart> parts_;
  Provenance provenance_;
  RecordStore& store_;
  std::ostream& progress_;
  size_t planned_ = 0, done_ = 0;  // runs
  double spent_ = 0;               // seconds of runs of this sweep
  size_t ran_ = 0;
};

}  // namespace moelab::tradeoff
