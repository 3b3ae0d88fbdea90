#pragma once
#include <array>
#include <cstdint>

#include "kernels/memory/ledger.h"
#include "train/config/settings.h"
#include "train/run/trainer.h"

namespace moelab {

// What a training run will hold at its peak, predicted by running its first steps on the meta device, which
// stands for settings.run.device: the same code, no data, no arithmetic. Tensor bytes; scratch inside library
// products is not in it.
struct DryRun {
  int64_t peak = 0;
  std::array<int64_t, kPhases> phase_peak{};
  KindBytes by_kind_at_peak{};
  KindBytes by_kind_in_forward{};  // at the highest moment of a step's forward
  int64_t host_peak = 0;           // batches and what else lies outside the budget
  int64_t nvme_peak = 0;
  int64_t update_bytes = 0;  // that the optimizer's update takes beyond what is held when it begins
  Trainer::StateBytes state;
};

// Runs two steps, an evaluation batch and the samples' largest pass, if the run has them, on one thread;
// nothing else may use the meta device meanwhile. Throws what the model's checks throw, and UserError for a
// sample.share that holds no text.
DryRun dry_run(const Settings& settings);

}  // namespace moelab
