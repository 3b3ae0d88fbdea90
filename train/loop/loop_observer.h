#pragma once
#include <cstdint>
#include <limits>
#include <string>

#include "train/memory/monitor.h"
#include "train/run/step_report.h"

namespace moelab {

// A step that was taken, as it goes into the run's record.
struct StepTaken {
  int64_t step = 0;    // counted from 1: how many steps were taken
  int64_t tokens = 0;  // seen since the start of training
  StepReport report;
  Reading memory;
  double milliseconds = 0;
  double held_out_loss = std::numeric_limits<double>::quiet_NaN();  // NaN: not evaluated after this step
};

// Hears what a TrainLoop does. The program writes it to files and prints it; a test keeps it.
class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  // Before the first step: what opening the run took.
  virtual void opened(const Reading& memory) = 0;
  virtual void step_taken(const StepTaken& step) = 0;
  virtual void evaluated(int64_t step, double loss, int64_t batches) = 0;
  // A checkpoint was handed to its writer.
  virtual void saving() = 0;
  // The model is as it was after `step` again: what was heard of later steps does not count.
  virtual void went_back(int64_t step) = 0;
  // A line for people.
  virtual void say(const std::string& line) = 0;
};

}  // namespace moelab
