#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "train/optim/schedule.h"

namespace moelab {
namespace {

OptimSettings settings(ScheduleKind kind, int64_t warmup) {
  OptimSettings s;
  s.lr = 3e-3;
  s.min_lr = 3e-4;
  s.schedule = kind;
  s.warmup = warmup;
  return s;
}

constexpr ScheduleKind kKinds[] = {ScheduleKind::cosine, ScheduleKind::wsd};

TEST(Schedule, WarmsUpInEqualSteps) {
  for (const ScheduleKind kind : kKinds) {
    const OptimSettings s = settings(kind, 20);
    EXPECT_DOUBLE_EQ(learning_rate(s, 200, 0), s.lr / 20);
    EXPECT_DOUBLE_EQ(learning_rate(s, 200, 9), s.lr / 2);
    EXPECT_DOUBLE_EQ(learning_rate(s, 200, 19), s.lr);
    EXPECT_DOUBLE_EQ(learning_rate(s, 200, 20), s.lr);
  }
}

TEST(Schedule, EndsExactlyAtTheFloor) {
  for (const ScheduleKind kind : kKinds) {
    for (const int64_t warmup : {0, 1, 7, 20}) {
      for (const int64_t steps : {21, 22, 23, 100, 101, 12345}) {
        const OptimSettings s = settings(kind, warmup);
        EXPECT_EQ(learning_rate(s, steps, steps - 1), s.min_lr) << steps << " " << warmup;
        EXPECT_GT(learning_rate(s, steps, steps - 2), s.min_lr) << steps << " " << warmup;
      }
    }
  }
}

TEST(Schedule, RisesThenNeverRisesAgain) {
  for (const ScheduleKind kind : kKinds) {
    for (const int64_t warmup : {0, 1, 13, 190, 199}) {
      const OptimSettings s = settings(kind, warmup);
      for (int64_t step = 1; step < 200; ++step) {
        const double before = learning_rate(s, 200, step - 1), now = learning_rate(s, 200, step);
        if (step < warmup) {
          EXPECT_GT(now, before) << step;
        } else {
          EXPECT_LE(now, before) << step;
        }
        EXPECT_LE(now, s.lr);
        EXPECT_GT(now, 0);
      }
    }
  }
}

TEST(Schedule, WithoutWarmupStartsAtTheFullRate) {
  for (const ScheduleKind kind : kKinds) EXPECT_DOUBLE_EQ(learning_rate(settings(kind, 0), 100, 0), 3e-3);
}

TEST(Schedule, RunNoLongerThanItsWarmupOnlyWarmsUp) {
  for (const ScheduleKind kind : kKinds) {
    EXPECT_DOUBLE_EQ(learning_rate(settings(kind, 10), 10, 9), 3e-3);
    EXPECT_DOUBLE_EQ(learning_rate(settings(kind, 20), 10, 9), 1.5e-3);
  }
}

TEST(Schedule, OneStep) {
  for (const ScheduleKind kind : kKinds) {
    EXPECT_EQ(learning_rate(settings(kind, 0), 1, 0), 3e-4);
    EXPECT_DOUBLE_EQ(learning_rate(settings(kind, 1), 1, 0), 3e-3);
  }
}

TEST(Schedule, CosineIsHalfACosine) {
  const OptimSettings s = settings(ScheduleKind::cosine, 10);
  EXPECT_NEAR(learning_rate(s, 111, 60), (s.lr + s.min_lr) / 2, 1e-15);
  const double quarter = (1 + std::cos(std::numbers::pi / 4)) / 2;
  EXPECT_NEAR(learning_rate(s, 111, 35), s.min_lr + (s.lr - s.min_lr) * quarter, 1e-15);
}

TEST(Schedule, WsdDecaysOverTheLastFifth) {
  const OptimSettings s = settings(ScheduleKind::wsd, 10);
  EXPECT_DOUBLE_EQ(learning_rate(s, 100, 79), s.lr);
  EXPECT_LT(learning_rate(s, 100, 80), s.lr);
  EXPECT_NEAR(learning_rate(s, 100, 89), (s.lr + s.min_lr) / 2, 1e-15);
}

}  // namespace
}  // namespace moelab
