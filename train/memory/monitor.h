#pragma once
#include <c10/core/Device.h>

#include <array>
#include <string>
#include <string_view>

#include "kernels/memory/device_memory.h"
#include "kernels/memory/ledger.h"
#include "train/settings/presets/profiles.h"
#include "train/settings/settings.h"

namespace moelab {

enum class MemoryStatus { normal, warning, critical, emergency };
std::string_view status_name(MemoryStatus status);

// The thresholds of memory.profile, each overridden by its own setting unless that is 0. Throws UserError
// when they do not ascend from target to emergency.
Thresholds resolve_thresholds(const MemorySettings& settings);

// A share that equals a threshold has that threshold's status.
MemoryStatus status_of(double share, const Thresholds& thresholds);

// One step's memory, in bytes.
struct Reading {
  int64_t step = 0;
  int64_t allocated = 0;  // at the end of the step
  int64_t reserved = 0;
  int64_t peak = 0;  // of the step, without reserved memory
  int64_t limit = 0;
  double share = 0;  // peak / limit
  MemoryStatus status = MemoryStatus::normal;
  KindBytes by_kind{};                        // held at the peak; 0 on CUDA
  std::array<KindBytes, kPhases> by_phase{};  // held at each phase's peak; 0 where not entered, and on CUDA
};

// The share of reserved memory that no tensor uses, because the allocator holds it in pieces. 0 on meta.
double fragmentation(const Reading& reading);

// Bytes of all activation kinds: plain ones, attention, routing, capacity buffers, the experts' rows.
int64_t activation_bytes(const KindBytes& by_kind);

// "[Step 100] Memory: 18.5/24.0 GiB (77%), Status: normal", followed by " - ACTION" unless `action` is empty.
// With a limit below a GiB in MiB. `status`, if given, replaces the reading's.
std::string dashboard_line(const Reading& reading, std::string_view action = {},
                           std::string_view status = {});

// The highest values of the whole run. Kinds and phases come from the ledgers of CPU and meta; 0 on CUDA.
struct RunPeaks {
  int64_t allocated = 0;
  int64_t tensors = 0;  // without scratch inside operators, which no dry run sees; on CUDA including it
  int64_t reserved = 0;
  std::array<int64_t, kPhases> by_phase{};
  KindBytes by_kind{};  // at the moment of `allocated`
};

// Watches one device, step by step. It takes no action: MemoryManager decides, the run acts.
class MemoryMonitor {
 public:
  // The limit is the device's; if it has none, memory.limit; if that is 0, all of the device's memory.
  MemoryMonitor(const MemorySettings& memory, const MonitorSettings& monitor, c10::Device device);

  // Reads the memory of the step that just ended and resets the device's peaks for the next.
  Reading observe(int64_t step);

  // The line to print after `reading`, or empty. A line is due every monitor.every steps, whenever the status
  // changes, and with every action. With monitor.quiet: only the first reading that is not normal. Call it
  // once per reading.
  std::string message(const Reading& reading, std::string_view action = {});
  // As message(), for a step that ran out of memory and is repeated.
  std::string refusal_message(const Reading& reading, std::string_view action);

  // Over all readings so far; the first includes the peaks before it (init).
  const RunPeaks& run_peaks() const { return run_peaks_; }
  const Thresholds& thresholds() const { return thresholds_; }

 private:
  void keep_highest(const DeviceMemory& memory);

  c10::Device device_;
  Thresholds thresholds_;
  int64_t every_;
  bool quiet_;
  int64_t limit_;
  MemoryStatus last_ = MemoryStatus::normal;
  bool warned_ = false;
  RunPeaks run_peaks_;
};

}  // namespace moelab
