#pragma once
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "train/predict/dry_run.h"
#include "train/program/record/run_record.h"

// What a run prints for people. A line about a step begins with it: "[Step 50/200]".
namespace moelab {

// "29.5M", "1.28B": three digits.
std::string human_count(int64_t count);
// "1 batch", "2 batches".
std::string counted(int64_t count, const char* one, const char* several);
// "4 s", "3 min 20 s", "2 h 05 min".
std::string human_seconds(double seconds);

// Prints a line every run.log_every steps (0: none), and one for every skipped step.
class Progress {
 public:
  // `bytes`: a token is a byte. `gemm_rate`: of this machine, in operations a second; 0: not known.
  Progress(const Settings& settings, bool bytes, double gemm_rate);
  // Speed and time left come from `record`'s medians.
  void step(const StepTaken& done, const RunRecord& record) const;
  void held_out(int64_t step, double loss, int64_t batches) const;

 private:
  std::string line(const StepTaken& done, const RunRecord& record) const;
  // ", 4.64 bits a byte", with the given text before it; empty where a token is no byte.
  std::string bits(const char* before, double loss) const;

  int64_t steps_, every_;
  bool packed_, bytes_;
  int64_t ranks_;
  double gemm_rate_;
  std::chrono::steady_clock::time_point start_;
};

void print_start(const Settings& settings, c10::Device device, const DryRun& predicted);
void print_end(const Settings& settings, int64_t steps, const RunRecord::Ending& ending,
               const RunRecord& record);

}  // namespace moelab
