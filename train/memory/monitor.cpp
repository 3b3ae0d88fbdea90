#include "train/memory/monitor.h"

#include <fmt/format.h>

#include <algorithm>

namespace moelab {
namespace {

const Ledger* ledger_of(c10::Device device) {
  if (device.is_cpu()) return &cpu_ledger();
  return device.is_meta() ? &meta_ledger() : nullptr;
}

}  // namespace

std::string_view status_name(MemoryStatus status) {
  constexpr std::array<std::string_view, 4> kNames = {"normal", "warning", "critical", "emergency"};
  return kNames[static_cast<size_t>(status)];
}

Thresholds resolve_thresholds(const MemorySettings& settings) {
  Thresholds t = profile_thresholds(settings.profile);
  const auto replace = [](double& value, double setting) { value = setting > 0 ? setting : value; };
  replace(t.target, settings.target);
  replace(t.warning, settings.warning);
  replace(t.critical, settings.critical);
  replace(t.emergency, settings.emergency);
  return t;
}

MemoryStatus status_of(double share, const Thresholds& thresholds) {
  if (share >= thresholds.emergency) return MemoryStatus::emergency;
  if (share >= thresholds.critical) return MemoryStatus::critical;
  return share >= thresholds.warning ? MemoryStatus::warning : MemoryStatus::normal;
}

double fragmentation(const Reading& r) {
  return r.reserved > 0 ? static_cast<double>(r.reserved - r.allocated) / static_cast<double>(r.reserved) : 0;
}

int64_t activation_bytes(const KindBytes& by_kind) {
  int64_t bytes = 0;
  for (const Kind kind :
       {Kind::activations, Kind::attention, Kind::routing, Kind::capacity_buffers, Kind::activation_experts})
    bytes += by_kind[static_cast<size_t>(kind)];
  return bytes;
}

std::string dashboard_line(const Reading& r, std::string_view action, std::string_view status) {
  constexpr int64_t kGiB = int64_t{1} << 30, kMiB = int64_t{1} << 20;
  const bool large = r.limit >= kGiB;
  const auto unit = static_cast<double>(large ? kGiB : kMiB);
  return fmt::format("[Step {}] Memory: {:.1f}/{:.1f} {} ({:.0f}%), Status: {}{}{}", r.step,
                     static_cast<double>(r.peak) / unit, static_cast<double>(r.limit) / unit,
                     large ? "GiB" : "MiB", 100 * r.share, status.empty() ? status_name(r.status) : status,
                     action.empty() ? "" : " - ", action);
}

MemoryMonitor::MemoryMonitor(const MemorySettings& memory, const MonitorSettings& monitor, c10::Device device)
    : device_(device),
      thresholds_(resolve_thresholds(memory)),
      every_(monitor.every),
      quiet_(monitor.quiet),
      limit_(memory.limit.count > 0 ? memory.limit.count : total_memory(device)) {}

Reading MemoryMonitor::observe(int64_t step) {
  const DeviceMemory memory = device_memory(device_);
  keep_highest(memory);
  Reading r{step, memory.allocated, memory.reserved, memory.peak, memory.limit > 0 ? memory.limit : limit_};
  const Ledger* ledger = ledger_of(device_);
  if (ledger != nullptr) r.by_kind = ledger->by_kind_at_peak();
  for (size_t phase = 0; ledger != nullptr && phase < kPhases; ++phase)
    r.by_phase[phase] = ledger->by_kind_at_phase_peak(static_cast<Phase>(phase));
  reset_peaks(device_);
  r.share = static_cast<double>(r.peak) / static_cast<double>(r.limit);
  r.status = status_of(r.share, thresholds_);
  return r;
}

std::string MemoryMonitor::message(const Reading& reading, std::string_view action) {
  const bool changed = reading.status != last_;
  last_ = reading.status;
  if (quiet_) {
    if (warned_ || reading.status == MemoryStatus::normal) return {};
    warned_ = true;
    return dashboard_line(reading, action);
  }
  const bool due = every_ > 0 && reading.step % every_ == 0;
  return due || changed || !action.empty() ? dashboard_line(reading, action) : std::string();
}

std::string MemoryMonitor::refusal_message(const Reading& reading, std::string_view action) {
  if (quiet_ && warned_) return {};
  warned_ = true;
  return dashboard_line(reading, action, "out of memory");
}

void MemoryMonitor::keep_highest(const DeviceMemory& memory) {
  const Ledger* ledger = ledger_of(device_);
  if (memory.peak > run_peaks_.allocated) {
    run_peaks_.allocated = memory.peak;
    if (ledger != nullptr) run_peaks_.by_kind = ledger->by_kind_at_peak();
  }
  run_peaks_.tensors = std::max(run_peaks_.tensors, ledger != nullptr ? ledger->tensor_peak() : memory.peak);
  run_peaks_.reserved = std::max(run_peaks_.reserved, memory.reserved_peak);
  for (size_t phase = 0; ledger != nullptr && phase < kPhases; ++phase) {
    auto& highest = run_peaks_.by_phase[phase];
    highest = std::max(highest, ledger->phase_peak(static_cast<Phase>(phase)));
  }
}

}  // namespace moelab
