#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/memory/ledger.h"
#include "train/predict/gpu.h"
#include "train/settings/settings.h"
#include "train/step/trainer.h"

namespace moelab {

// What a training run will hold at its peak in tensor bytes, without scratch inside library products.
// Predicted by running its first steps on the meta device, which stands in for settings.run.device: the same
// code, without data or arithmetic. Of several ranks, that of one of them.
struct DryRun {
  int64_t rank = 0;
  int64_t peak = 0;
  int64_t workspaces = 0;  // what cuBLAS keeps beside the tensors; 0 on the CPU
  std::array<int64_t, kPhases> phase_peak{};
  KindBytes by_kind_at_peak{};
  KindBytes by_kind_in_forward{};  // at the peak of a step's forward pass
  int64_t host_peak = 0;           // batches and everything else outside the device budget
  int64_t nvme_peak = 0;
  std::vector<int64_t> owned_elements;  // of the weights, by each rank, if ranks divide the state
  int64_t sent_bytes = 0;               // to other ranks, by a step …
  int64_t sent_rows_bytes = 0;          // … of these by the exchanges between dispatch and experts, …
  int64_t sent_stage_bytes = 0;         // … to other stages of the pipeline, …
  int64_t sent_sums_bytes = 0;          // … and by the sums over ranks that share each matrix
  int64_t update_bytes = 0;             // peak of the optimizer's update beyond what is held when it begins
  Trainer::StateBytes state;

  // What the allocator holds at the peak.
  int64_t held() const { return peak + workspaces; }
};

// Runs two steps, plus an evaluation batch and the largest sampling pass if the run has them, on one thread.
// Nothing else may use the meta device meanwhile. Throws what the model's checks throw, and UserError when
// sample.share is too small for one text, or the layout of the ranks is none. Of ranks that divide the state
// (parallel.zero), that of the one with the largest part; of a pipeline's stages, the one with the highest
// peak. With run.device=cuda it is for `gpu`, without one for the card of run.preset.
DryRun dry_run(const Settings& settings);
DryRun dry_run(const Settings& settings, const Gpu& gpu);
// That of one of the ranks, by its number in the whole run.
DryRun dry_run_of_rank(const Settings& settings, int64_t rank, const Gpu& gpu);

// Where the peak is, and its three largest kinds: "backward, activations 3.1 GiB, optimizer 1.0 GiB".
std::string peak_text(const DryRun& run);

}  // namespace moelab
