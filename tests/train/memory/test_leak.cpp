#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/memory/ledger.h"
#include "train/memory/leak_detector.h"

namespace moelab {
namespace {

constexpr double kMiB = 1 << 20;

// The number of the reading that shows a leak, counted from 1; 0: none.
int64_t shown_at(LeakDetector detector, const std::vector<double>& readings) {
  int64_t at = 0, n = 0;
  for (const double bytes : readings) {
    ++n;
    if (!detector.add(bytes)) continue;
    EXPECT_EQ(at, 0) << "a second warning";
    at = n;
  }
  return at;
}

std::vector<double> series(int64_t count, const std::function<double(int64_t)>& f) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(f(i));
  return values;
}

TEST(LeakDetector, SteadyOrFallingSeriesAreNone) {
  EXPECT_EQ(shown_at(LeakDetector(), series(200, [](int64_t) { return 100.0; })), 0);
  EXPECT_EQ(shown_at(LeakDetector(), series(200, [](int64_t i) { return 300.0 - double(i); })), 0);
  EXPECT_EQ(shown_at(LeakDetector(), series(200, [](int64_t i) { return i < 10 ? 100.0 : 149.0; })), 0);
}

// The first ten are 100 to 109, mean 104.5. The last ten exceed 1.5 times that, 156.75, when they are 153 to
// 162.
TEST(LeakDetector, ShowsWhereTheMeanOfTenPassesOneAndAHalf) {
  EXPECT_EQ(shown_at(LeakDetector(), series(200, [](int64_t i) { return 100.0 + double(i); })), 63);
}

TEST(LeakDetector, AShortSpikeIsNone) {
  EXPECT_EQ(shown_at(LeakDetector(), series(100, [](int64_t i) { return i == 50 ? 500.0 : 100.0; })), 0);
}

TEST(LeakDetector, GrowthOfLittleIsMeasuredAgainstTheFloor) {
  const auto small = series(100, [](int64_t i) { return i < 10 ? 1 * kMiB : 9 * kMiB; });
  EXPECT_EQ(shown_at(LeakDetector(), small), 11 + 0);
  EXPECT_EQ(shown_at(LeakDetector(10 * kMiB), small), 0);
}

// A run that keeps a tensor of every step: on the device, in loaded batches, or outside of the allocator.
TEST(LeakWatch, FindsAPlantedLeakInEachSeriesOnce) {
  install_allocators();
  constexpr int64_t kSteps = 60;
  for (const std::string where : {"none", "device", "host, allocated", "host, outside of the allocator"}) {
    LeakWatch watch;
    std::vector<at::Tensor> kept;
    std::vector<std::vector<char>> outside;
    std::vector<std::string> lines;
    at::Tensor state = at::zeros({8 << 20}, at::kByte);
    for (int64_t step = 1; step <= kSteps; ++step) {
      if (where == "device") kept.push_back(at::zeros({1 << 20}, at::kByte));
      if (where.starts_with("host, a")) {
        const HomeScope host(Home::host);
        kept.push_back(at::empty({4 << 20}, at::kByte));
      }
      if (where.starts_with("host, o")) outside.emplace_back(16 << 20, '1');
      for (const auto& line : watch.after_step(step, cpu_ledger().allocated(), false)) lines.push_back(line);
    }
    if (where == "none") {
      EXPECT_TRUE(lines.empty()) << lines[0];
      continue;
    }
    ASSERT_EQ(lines.size(), 1u) << where;
    EXPECT_NE(lines[0].find("Memory: " + where + " grew from"), std::string::npos) << lines[0];
    EXPECT_EQ(watch.found(), lines);
  }
}

TEST(LeakWatch, ACheckpointsCopiesAreNoLeak) {
  install_allocators();
  LeakWatch watch;
  for (int64_t step = 1; step <= 60; ++step) {
    const HomeScope host(Home::host);
    const bool saving = step > 20;
    const at::Tensor copies = at::empty({saving ? 300 << 20 : 1}, at::kByte);
    EXPECT_TRUE(watch.after_step(step, 100, saving).empty()) << step;
  }
}

}  // namespace
}  // namespace moelab
