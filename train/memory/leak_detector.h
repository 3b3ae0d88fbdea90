#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace moelab {

// Tells once when a series of readings in bytes has grown for good: when the mean of the last ten passes 1.5
// times that of the first ten.
class LeakDetector {
 public:
  static constexpr int64_t kReadings = 10;
  static constexpr double kGrowth = 1.5;

  // Growth is measured against at least `floor` bytes, so that the noise of a small series is none.
  explicit LeakDetector(double floor = 0) : floor_(floor) {}

  struct Leak {
    double first = 0, last = 0;  // the two means, bytes
  };
  // The leak, with the reading that first shows it; never again after that.
  std::optional<Leak> add(double bytes);
  bool found() const { return found_; }

 private:
  double floor_;
  double first_sum_ = 0;
  int64_t first_count_ = 0;
  std::deque<double> last_;
  bool found_ = false;
};

// Memory of this process outside of what the CPU allocator holds: anonymous pages, less its large blocks; 0
// where those are not all touched. File pages (shards that are mapped) are not in it. Linux's /proc.
double host_bytes_outside();

// The series that a run watches: what the device holds at the end of each step, and on the host the batches
// that are loaded and what lies outside of the allocator.
class LeakWatch {
 public:
  // Lines to print, one for each leak that this step shows. `saving`: a checkpoint's copies are in memory, so
  // that the host's readings say nothing.
  std::vector<std::string> after_step(int64_t step, int64_t device_bytes, bool saving);
  // All of them so far.
  const std::vector<std::string>& found() const { return found_; }

 private:
  static constexpr double kHostFloor = 64 << 20;

  LeakDetector device_, loaded_{kHostFloor}, outside_{kHostFloor};
  std::vector<std::string> found_;
};

}  // namespace moelab
