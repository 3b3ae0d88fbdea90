#include "train/optim/schedule.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>

namespace moelab {
namespace {

// 0 at step `warmup`, 1 at the last step.
double cosine_progress(int64_t warmup, int64_t last, int64_t step) {
  return step >= last ? 1 : static_cast<double>(step - warmup) / static_cast<double>(last - warmup);
}

// 0 until the last fifth, 1 at the last step.
double decay_progress(int64_t warmup, int64_t steps, int64_t step) {
  const int64_t decay = (steps + 4) / 5;
  const int64_t start = std::max(warmup, steps - decay);
  return step < start ? 0 : static_cast<double>(step - start + 1) / static_cast<double>(steps - start);
}

}  // namespace

double learning_rate(const OptimSettings& settings, int64_t steps_total, int64_t step) {
  assert(step >= 0 && step < steps_total);
  if (step < settings.warmup) {
    return settings.lr * (static_cast<double>(step + 1) / static_cast<double>(settings.warmup));
  }
  double way = 0;  // 0: at lr, 1: at min_lr
  if (settings.schedule == ScheduleKind::wsd) {
    way = decay_progress(settings.warmup, steps_total, step);
  } else {
    way = (1 - std::cos(std::numbers::pi * cosine_progress(settings.warmup, steps_total - 1, step))) / 2;
  }
  return std::lerp(settings.lr, settings.min_lr, way);  // monotone, and exact at both ends
}

}  // namespace moelab
