#include "train/memory/leak_detector.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include <fmt/format.h>

#include "kernels/memory/block_cache.h"
#include "kernels/memory/ledger.h"
#include "kernels/memory/report.h"
#include "train/io/proc_file.h"

namespace moelab {

std::optional<LeakDetector::Leak> LeakDetector::add(double bytes) {
  if (found_) return std::nullopt;
  if (first_count_ < kReadings) {
    first_sum_ += bytes;
    ++first_count_;
  }
  last_.push_back(bytes);
  if (static_cast<int64_t>(last_.size()) > kReadings) last_.pop_front();
  if (first_count_ < kReadings) return std::nullopt;
  const Leak means{first_sum_ / kReadings, std::accumulate(last_.begin(), last_.end(), 0.0) / kReadings};
  found_ = means.last > kGrowth * std::max(means.first, floor_);
  return found_ ? std::optional(means) : std::nullopt;
}

double host_bytes_outside() {
  const double anonymous = 1024 * std::strtod(proc_value("/proc/self/status", "RssAnon").c_str(), nullptr);
  return std::max(0.0, anonymous - static_cast<double>(cpu_blocks().mapped()));
}

std::vector<std::string> LeakWatch::after_step(int64_t step, int64_t device_bytes, bool saving) {
  std::vector<std::string> lines;
  const auto add = [&](LeakDetector& detector, double bytes, const char* what) {
    const auto leak = detector.add(bytes);
    if (!leak) return;
    lines.push_back(fmt::format("[Step {}] Memory: {} grew from {} to {} (means of {} steps)", step, what,
                                human_bytes(static_cast<int64_t>(leak->first)),
                                human_bytes(static_cast<int64_t>(leak->last)), LeakDetector::kReadings));
  };
  add(device_, static_cast<double>(device_bytes), "device");
  if (!saving) {
    add(loaded_, static_cast<double>(cpu_ledger(Home::host).allocated()), "host, allocated");
    add(outside_, host_bytes_outside(), "host, outside of the allocator");
  }
  found_.insert(found_.end(), lines.begin(), lines.end());
  return lines;
}

}  // namespace moelab
