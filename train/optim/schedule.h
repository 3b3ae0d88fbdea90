#pragma once
#include <cstdint>

#include "train/settings/settings.h"

namespace moelab {

// The learning rate of `step`, 0 <= step < steps_total.
//   warm-up, step < warmup: lr (step + 1) / warmup. A run no longer than its warm-up stays in this phase.
//   cosine: from lr at step `warmup` along half a cosine to exactly min_lr at the last step
//   (SGDR, arXiv 1608.03983, without restarts);
//   wsd: constant lr, then linear over the last fifth of all steps (without the warm-up) to exactly min_lr at
//   the last step (arXiv 2404.06395).
double learning_rate(const OptimSettings& settings, int64_t steps_total, int64_t step);

}  // namespace moelab
