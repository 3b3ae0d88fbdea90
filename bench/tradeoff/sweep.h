#pragma once
#include <filesystem>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "bench/tradeoff/cases.h"
#include "bench/tradeoff/outcome.h"
#include "bench/tradeoff/provenance.h"
#include "bench/tradeoff/record_store.h"
#include "bench/tradeoff/schedule.h"

namespace moelab::tradeoff {

struct SweepOptions {
  std::filesystem::path program;  // moelab
  std::filesystem::path scripts;  // the folder of ranks.sh and slow_link.sh
  double timeout_seconds = 0;     // per run
  // Time budget; 0: none. No run starts after it. No pass starts that is expected to exceed it, unless it is
  // the first of this sweep.
  double budget_seconds = 0;
  std::filesystem::path work;  // folder for the files of the current run
  // A case whose relative_spread exceeds `spread` is run again, with its reference, in up to `extra_rounds`
  // more rounds. If it still exceeds `spread` after the last one, that record gets "noisy": true.
  double spread = 0;
  int64_t extra_rounds = 0;
  // Added to rounds in records. Portions of a sweep differ in it, so that a run is compared with the
  // reference of its own machine where the records of several alike are put together.
  int64_t rounds_before = 0;
};

// Cases that are measured together.
struct SweepPart {
  std::string name;  // as PlanPart
  int64_t rounds = 0;
  std::vector<Case> cases;
  bool seeds = false;                            // as PlanPart
  std::vector<std::vector<size_t>> groups = {};  // groups_of() the cases; filled by Sweep
};

// Runs the parts in order: every case once per round, each run in its own process, except runs that `store`
// already has. Every run is recorded, however it ends.
class Sweep {
 public:
  Sweep(const SweepOptions& options, std::vector<SweepPart> parts, const Provenance& provenance,
        RecordStore& store, std::ostream& progress);

  // Returns the signal that stopped the sweep, or 0. A run that a signal cuts short leaves no record. Needs
  // HeldSignals.
  int run();

 private:
  void announce();
  bool run_part(const SweepPart& part);
  std::vector<Slot> pending(const SweepPart& part, int64_t pass) const;
  std::vector<Slot> slots_of_noisy(const SweepPart& part, int64_t pass) const;
  std::vector<double> ratios(const SweepPart& part, const Case& one, int64_t passes) const;
  bool stays_noisy(const SweepPart& part, const Case& one, int64_t round, const Json& record) const;

  RunKey key(const SweepPart& part, const Case& one, int64_t round) const;
  int64_t seed(const SweepPart& part, int64_t round) const;
  std::vector<std::string> command(const SweepPart& part, const Slot& slot) const;
  std::string refusal(const Link& link);
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
  std::map<std::string, std::string> refusals_;  // of limited links by name: why this machine makes none
  size_t planned_ = 0, done_ = 0;                // runs
  double spent_ = 0;                             // seconds, over the runs of this sweep
  size_t ran_ = 0;
};

}  // namespace moelab::tradeoff
