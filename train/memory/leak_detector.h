#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace moelab {

// Reports once when a series of readings in bytes stays larger: when the mean of the last ten exceeds
// 1.5 times the mean of the first ten.
class LeakDetector {
 public:
  static constexpr int64_t kReadings = 10;
  static constexpr double kGrowth = 1.5;

  // `floor`: the first mean counts as at least this many bytes, so that noise in a small series is not a
  // leak.
  explicit LeakDetector(double floor = 0) : floor_(floor) {}

  struct Leak {
    double first = 0, last = 0;  // the two means, bytes
  };
  // Returns the leak with the first reading that shows it; none after that.
  std::optional<Leak> add(double bytes);
  bool found() const { return found_; }

 private:
  double floor_;
  double first_sum_ = 0;
  int64_t first_count_ = 0;
  std::deque<double> last_;
  bool found_ = false;
};

// Memory of this process outside of what the CPU allocator holds: anonymous pages minus the allocator's large
// blocks; 0 if that is negative because blocks are not fully touched. Without file pages (mapped shards).
// From Linux's /proc.
double host_bytes_outside();

// Watches three series: what the device holds at the end of each step, the batches loaded on the host, and
// host memory outside of the allocator.
class LeakWatch {
 public:
  // Lines to print, one for each leak that this step shows. `saving`: a checkpoint's copies are in memory, so
  // the host's readings are skipped.
  std::vector<std::string> after_step(int64_t step, int64_t device_bytes, bool saving);
  // The lines of all leaks so far.
  const std::vector<std::string>& found() const { return found_; }

 private:
  static constexpr double kHostFloor = 64 << 20;

  LeakDetector device_, loaded_{kHostFloor}, outside_{kHostFloor};
  std::vector<std::string> found_;
};

}  // namespace moelab
