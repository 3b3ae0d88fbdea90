#pragma once
#include <cstdint>
#include <optional>

#include "train/predict/gpu.h"
#include "train/predict/planner.h"
#include "train/settings/settings.h"

namespace moelab {

// Device bytes that a deep run holds at its peak, from dry runs of the same run with few of its blocks: each
// further block adds as much to a phase of a step as the ones before. Several times cheaper than dry_run(),
// from which it differs by at most kDepthError. None: the run has too few blocks for that, a pipeline divides
// them, or four that follow on each other are not recomputed like the next four.
std::optional<int64_t> held_by_depth(const Settings& settings, const Gpu& gpu);
inline constexpr double kDepthError = 0.02;

// `predict`, but the bytes by depth where these clearly exceed `room`: what does not fit need not be exact.
PredictBytes exact_up_to(int64_t room, const Gpu& gpu, const PredictBytes& predict);

// The bytes by depth, with their largest error on top; else those of `predict`.
PredictBytes quick_and_above(const Gpu& gpu, const PredictBytes& predict);

}  // namespace moelab
