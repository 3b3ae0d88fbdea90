#pragma once
#include <cstdint>
#include <limits>
#include <string>

#include "train/memory/monitor.h"
#include "train/step/step_report.h"

namespace moelab {

// A completed step, for the run's record.
struct StepTaken {
  int64_t step = 0;    // counted from 1
  int64_t tokens = 0;  // in total, since the start of training
  StepReport report;
  Reading memory;
  double milliseconds = 0;
  double held_out_loss = std::numeric_limits<double>::quiet_NaN();  // NaN: not evaluated after this step
};

// Gets the events of a TrainLoop. The program writes them to files and prints them; tests store them.
class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  // Before the first step: memory used to open the run.
  virtual void opened(const Reading& memory) = 0;
  virtual void step_taken(const StepTaken& step) = 0;
  virtual void evaluated(int64_t step, double loss, int64_t batches) = 0;
  // The evaluation after `step`, a step of the run that this one resumes, which was stopped during it.
  virtual void evaluation_made_up(int64_t step, double loss) = 0;
  // A checkpoint was handed to its writer.
  virtual void saving() = 0;
  // The model is back at its state after `step`: discard the events of later steps.
  virtual void went_back(int64_t step) = 0;
  // A line to print for the user.
  virtual void say(const std::string& line) = 0;
};

}  // namespace moelab
