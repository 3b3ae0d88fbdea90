#pragma once
#include <optional>
#include <string>
#include <vector>

#include "train/predict/cost_model.h"
#include "train/predict/gpu.h"
#include "train/predict/planner.h"
#include "train/predict/probe.h"
#include "train/settings/settings.h"

// What `moelab plan` and a training run that does not fit both ask the planner, so that they name the same
// combination.
namespace moelab {

// The device that a plan is for.
struct PlanDevice {
  CostModel costs;                  // on this machine's CPU scaled by `probe`
  Gpu gpu = {};                     // unless it is the CPU; bytes: 0 where its memory does not bound the run
  std::optional<Probe> probe = {};  // none: the costs are of the machine that they name
};

// The name in cost_devices() of the device of a resolved run: the CPU, the card of run.preset, else an H100.
// run.device=auto is the preset's card, or the CPU.
std::string plan_device_name(const Settings& run);

// The device with that name, for this run. Probes this machine if it is the CPU.
PlanDevice plan_device(const std::string& name, const Settings& run);

// The resolved run that a plan adds techniques to: `given`, but what a card's preset chooses of precision,
// recomputation and captured steps is open, unless it is among the `pinned` keys.
Settings plan_base(const Settings& given, const std::vector<std::string>& pinned);

// Bytes to compare with the room: the tensors' peak with cuBLAS's workspaces or, where the allocator's
// reserve passes memory.limit or the card, what is too much there.
PredictBytes bytes_on(const Gpu& gpu);

// A search of one rank's techniques that add to `base`: `best` rows, by dry runs of `bytes`.
PlanSearch search_of(const Settings& base, const std::vector<std::string>& pinned, int64_t best);

}  // namespace moelab
