#include "train/memory/monitor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace moelab {
namespace {

constexpr double kGiB = 1 << 30;

int64_t gib(double count) { return std::llround(std::ceil(count * kGiB)); }

Reading reading(int64_t step, int64_t peak, int64_t limit, const Thresholds& thresholds) {
  Reading r{step, peak, peak, peak, limit};
  r.share = static_cast<double>(peak) / static_cast<double>(limit);
  r.status = status_of(r.share, thresholds);
  return r;
}

// The guide's example lines, at the default thresholds.
TEST(Dashboard, IsTheGuidesLine) {
  const Thresholds t = resolve_thresholds({});
  EXPECT_EQ(dashboard_line(reading(100, gib(18.5), gib(24), t)),
            "[Step 100] Memory: 18.5/24.0 GiB (77%), Status: normal");
  EXPECT_EQ(dashboard_line(reading(200, gib(21.2), gib(24), t)),
            "[Step 200] Memory: 21.2/24.0 GiB (88%), Status: normal");
  EXPECT_EQ(dashboard_line(reading(300, gib(22.8), gib(24), t)),
            "[Step 300] Memory: 22.8/24.0 GiB (95%), Status: critical");
  EXPECT_EQ(dashboard_line(reading(400, gib(20.1), gib(24), t)),
            "[Step 400] Memory: 20.1/24.0 GiB (84%), Status: normal");
}

TEST(Dashboard, SaysWhatIsDone) {
  const Thresholds t = resolve_thresholds({});
  EXPECT_EQ(dashboard_line(reading(300, gib(22.8), gib(24), t), "reducing batch size"),
            "[Step 300] Memory: 22.8/24.0 GiB (95%), Status: critical - reducing batch size");
  EXPECT_EQ(dashboard_line(reading(400, gib(20.1), gib(24), t), "batch size restored"),
            "[Step 400] Memory: 20.1/24.0 GiB (84%), Status: normal - batch size restored");
  EXPECT_EQ(dashboard_line(reading(7, gib(24), gib(24), t), "reducing batch size", "out of memory"),
            "[Step 7] Memory: 24.0/24.0 GiB (100%), Status: out of memory - reducing batch size");
}

TEST(Fragmentation, IsTheShareOfReservedMemoryThatNobodyHas) {
  Reading r;
  EXPECT_EQ(fragmentation(r), 0);
  r.allocated = 15, r.reserved = 20;
  EXPECT_DOUBLE_EQ(fragmentation(r), 0.25);
}

TEST(Dashboard, SmallLimitsAreInMegabytes) {
  const Thresholds t = resolve_thresholds({});
  EXPECT_EQ(dashboard_line(reading(7, 96 << 20, 128 << 20, t)),
            "[Step 7] Memory: 96.0/128.0 MiB (75%), Status: normal");
  EXPECT_EQ(dashboard_line(reading(7, gib(0.5), gib(1), t)),
            "[Step 7] Memory: 0.5/1.0 GiB (50%), Status: normal");
}

TEST(Thresholds, AreTheProfilesAtTheirBoundaries) {
  struct Row {
    MemoryProfile profile;
    double target, warning, critical, emergency;
  };
  for (const Row& row : {Row{MemoryProfile::aggressive, 0.92, 0.94, 0.96, 0.98},
                         Row{MemoryProfile::balanced, 0.90, 0.92, 0.95, 0.97},
                         Row{MemoryProfile::conservative, 0.85, 0.88, 0.92, 0.95}}) {
    MemorySettings settings;
    settings.profile = row.profile;
    const Thresholds t = resolve_thresholds(settings);
    EXPECT_EQ(t.target, row.target);
    EXPECT_EQ(status_of(0, t), MemoryStatus::normal);
    EXPECT_EQ(status_of(std::nextafter(row.warning, 0), t), MemoryStatus::normal);
    EXPECT_EQ(status_of(row.warning, t), MemoryStatus::warning);
    EXPECT_EQ(status_of(std::nextafter(row.critical, 0), t), MemoryStatus::warning);
    EXPECT_EQ(status_of(row.critical, t), MemoryStatus::critical);
    EXPECT_EQ(status_of(std::nextafter(row.emergency, 0), t), MemoryStatus::critical);
    EXPECT_EQ(status_of(row.emergency, t), MemoryStatus::emergency);
    EXPECT_EQ(status_of(1.5, t), MemoryStatus::emergency);
  }
}

TEST(Thresholds, SettingsReplaceTheProfiles) {
  MemorySettings settings;
  settings.warning = 0.93;
  const Thresholds t = resolve_thresholds(settings);
  EXPECT_EQ(t.target, 0.90);
  EXPECT_EQ(t.warning, 0.93);
}

TEST(Status, Names) {
  EXPECT_EQ(status_name(MemoryStatus::normal), "normal");
  EXPECT_EQ(status_name(MemoryStatus::warning), "warning");
  EXPECT_EQ(status_name(MemoryStatus::critical), "critical");
  EXPECT_EQ(status_name(MemoryStatus::emergency), "emergency");
}

class MonitorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_allocators(); }
  void SetUp() override {
    cpu_ledger().enter_phase(Phase::init);
    cpu_ledger().reset_peaks();
    memory_.limit.count = cpu_ledger().allocated() + 1000;
  }
  static at::Tensor bytes(int64_t count) { return at::empty({count}, at::kByte); }

  MemorySettings memory_;
  MonitorSettings monitor_;
  c10::Device cpu_{c10::kCPU};
};

TEST_F(MonitorTest, ReadsEachStepsOwnPeak) {
  const int64_t base = cpu_ledger().allocated();
  MemoryMonitor monitor(memory_, monitor_, cpu_);
  at::Tensor kept = bytes(100);
  cpu_ledger().enter_phase(Phase::backward);
  { at::Tensor passing = bytes(800); }
  const Reading first = monitor.observe(1);
  EXPECT_EQ(first.allocated, base + 100);
  EXPECT_EQ(first.peak, base + 900);
  EXPECT_EQ(first.limit, base + 1000);
  EXPECT_DOUBLE_EQ(first.share, double(base + 900) / double(base + 1000));
  const KindBytes& held = first.by_phase[static_cast<size_t>(Phase::backward)];
  EXPECT_EQ(std::accumulate(held.begin(), held.end(), int64_t{0}), base + 900);
  EXPECT_EQ(first.by_phase[static_cast<size_t>(Phase::forward)], KindBytes{});
  { at::Tensor passing = bytes(200); }
  EXPECT_EQ(monitor.observe(2).peak, base + 300);  // not the first step's peak
  const RunPeaks& run = monitor.run_peaks();
  EXPECT_EQ(run.allocated, base + 900);
  EXPECT_EQ(run.by_phase[static_cast<size_t>(Phase::init)], base + 100);
  EXPECT_EQ(run.by_phase[static_cast<size_t>(Phase::backward)], base + 900);
  EXPECT_EQ(std::accumulate(run.by_kind.begin(), run.by_kind.end(), int64_t{0}), run.allocated);
}

TEST_F(MonitorTest, WithoutALimitItIsTheMachines) {
  memory_.limit.count = 0;
  EXPECT_EQ(MemoryMonitor(memory_, monitor_, cpu_).observe(1).limit, total_memory(cpu_));
}

std::vector<bool> prints(MemoryMonitor monitor, const std::vector<double>& shares) {
  std::vector<bool> result;
  int64_t step = 0;
  for (double share : shares) {
    const Reading r = reading(++step, std::llround(share * 1000), 1000, monitor.thresholds());
    result.push_back(!monitor.message(r).empty());
  }
  return result;
}

TEST_F(MonitorTest, PrintsWhenDueAndWhenTheStatusChanges) {
  monitor_.every = 3;
  EXPECT_EQ(prints({memory_, monitor_, cpu_}, {0.1, 0.1, 0.1, 0.93, 0.93, 0.93, 0.5}),
            (std::vector<bool>{false, false, true, true, false, true, true}));
  monitor_.every = 0;
  EXPECT_EQ(prints({memory_, monitor_, cpu_}, {0.1, 0.1, 0.98, 0.98}),
            (std::vector<bool>{false, false, true, false}));
}

// If the budget changes during the run, shares are of the current one.
TEST_F(MonitorTest, TheDevicesOwnLimitComesFirst) {
  MemoryMonitor monitor(memory_, monitor_, cpu_);
  set_limit(cpu_, cpu_ledger().allocated() + 5000);
  EXPECT_EQ(monitor.observe(1).limit, cpu_ledger().allocated() + 5000);
  set_limit(cpu_, 0);
  EXPECT_EQ(monitor.observe(2).limit, memory_.limit.count);
}

TEST_F(MonitorTest, AnActionIsAlwaysSaidUnlessQuiet) {
  monitor_.every = 0;
  MemoryMonitor monitor(memory_, monitor_, cpu_);
  const Reading normal = reading(1, 500, 1000, monitor.thresholds());
  EXPECT_EQ(monitor.message(normal), "");
  EXPECT_NE(monitor.message(normal, "batch size restored"), "");
  EXPECT_NE(monitor.refusal_message(normal, "reducing batch size"), "");
  monitor_.quiet = true;
  MemoryMonitor quiet(memory_, monitor_, cpu_);
  EXPECT_EQ(quiet.message(normal, "batch size restored"), "");
  EXPECT_NE(quiet.refusal_message(normal, "reducing batch size"), "");
  EXPECT_EQ(quiet.refusal_message(normal, "reducing batch size"), "");
}

TEST_F(MonitorTest, QuietWarnsOnce) {
  monitor_.every = 1;
  monitor_.quiet = true;
  EXPECT_EQ(prints({memory_, monitor_, cpu_}, {0.1, 0.93, 0.98, 0.1, 0.99}),
            (std::vector<bool>{false, true, false, false, false}));
}

}  // namespace
}  // namespace moelab
