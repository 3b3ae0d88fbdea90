#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "train/predict/dry_run.h"
#include "train/program/record/run_record.h"

// What a run prints for people.
namespace moelab {

// "29.5M", "1.28B": three digits.
std::string human_count(int64_t count);
// "4 s", "3 min 20 s", "2 h 05 min".
std::string human_seconds(double seconds);

// Prints a line every run.log_every steps (0: none), and one for every skipped step.
class Progress {
 public:
  explicit Progress(const Settings& settings)
      : steps_(settings.train.steps),
        every_(settings.run.log_every),
        packed_(settings.train.tokens_per_device > 0),
        ranks_(settings.parallel.data) {}
  // Speed and time left come from `record`'s medians.
  void step(const StepTaken& done, const RunRecord& record) const;

 private:
  int64_t steps_, every_;
  bool packed_;
  int64_t ranks_;
};

void print_start(const Settings& settings, c10::Device device, const DryRun& predicted);
void print_held_out(int64_t step, double loss, int64_t batches);
void print_end(const Settings& settings, int64_t steps, const RunRecord::Ending& ending,
               double tokens_per_second);

}  // namespace moelab
