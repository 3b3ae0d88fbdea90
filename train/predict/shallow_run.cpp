#include "train/predict/shallow_run.h"

#include <algorithm>
#include <cmath>

#include "train/predict/dry_run.h"

namespace moelab {
namespace {

// Blocks by which two dry runs differ. The smaller one has twice as many: what a step holds of its first two
// blocks, or segments of blocks, differs from what it holds of later ones.
constexpr int64_t kFewBlocks = 4;

// Whether any kFewBlocks blocks that follow on each other are recomputed like any others.
bool repeats(const ActivationSettings& activations) {
  switch (activations.checkpoint) {
    case CheckpointMode::none:
    case CheckpointMode::full:
      return true;
    case CheckpointMode::every:
    case CheckpointMode::segments:
      return kFewBlocks % activations.every == 0;
    case CheckpointMode::ratio: {
      const double recomputed = activations.ratio * kFewBlocks;
      return recomputed == std::floor(recomputed);
    }
    case CheckpointMode::layers:
      return false;
  }
  return false;
}

DryRun shallow_run(const Settings& settings, int64_t blocks, const Gpu& gpu) {
  Settings shallow = with_few_passes(settings);
  shallow.model.layers = blocks;
  return dry_run(shallow, gpu);
}

}  // namespace

std::optional<int64_t> held_by_depth(const Settings& settings, const Gpu& gpu) {
  const int64_t layers = settings.model.layers;
  if (layers < 10 * kFewBlocks || settings.parallel.pipeline > 1 || !repeats(settings.activations))
    return std::nullopt;
  const DryRun shallow = shallow_run(settings, 2 * kFewBlocks, gpu),
               deeper = shallow_run(settings, 3 * kFewBlocks, gpu);
  int64_t peak = 0;
  for (size_t phase = 0; phase < kPhases; ++phase) {
    const int64_t begins = shallow.phase_peak[phase], added = deeper.phase_peak[phase] - begins;
    peak = std::max(peak, begins + added * (layers - 2 * kFewBlocks) / kFewBlocks);
  }
  return peak + deeper.workspaces;
}

PredictBytes exact_up_to(int64_t room, const Gpu& gpu, const PredictBytes& predict) {
  return [room, gpu, predict](const Settings& settings) {
    const std::optional<int64_t> about = held_by_depth(settings, gpu);
    const bool too_large =
        about && static_cast<double>(*about) > (1 + kDepthError) * static_cast<double>(room);
    return too_large ? *about : predict(settings);
  };
}

PredictBytes quick_and_above(const Gpu& gpu, const PredictBytes& predict) {
  return [gpu, predict](const Settings& settings) {
    const std::optional<int64_t> about = held_by_depth(settings, gpu);
    return about ? static_cast<int64_t>((1 + kDepthError) * static_cast<double>(*about)) : predict(settings);
  };
}

}  // namespace moelab
