#include "train/memory/profile/inspector.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iostream>

#include "kernels/memory/report.h"
#include "moe/settings/error.h"

namespace moelab {
namespace {

std::string table_text(const OperatorTable& table, int64_t last_step, int64_t steps) {
  constexpr size_t kRows = 10;
  std::string text = fmt::format(
      "operators that hold most at the peak of steps {} to {}: {}, of it {} from before these steps\n"
      "{:>16}  {:>16}  operator\n",
      last_step - steps + 1, last_step, human_bytes(table.peak), human_bytes(table.before),
      "held at the peak", "allocated a step");
  for (size_t i = 0; i < std::min(kRows, table.operators.size()); ++i) {
    const OperatorMemory& op = table.operators[i];
    text += fmt::format("{:>16}  {:>16}  {}\n", human_bytes(op.at_peak), human_bytes(op.allocated / steps),
                        op.name);
  }
  return text;
}

}  // namespace

int64_t warm_up_steps(int64_t steps) { return std::min<int64_t>(3, steps / 3); }

Inspector::Inspector(const Settings& settings, c10::Device device)
    : monitor_(settings.monitor),
      steps_(settings.train.steps),
      folder_(settings.run.dir),
      device_(device),
      profile_done_(settings.monitor.profile_steps == 0) {
  if (monitor_.snapshot != SnapshotWhen::never) snapshots_.emplace(device, folder_);
  if (monitor_.snapshot == SnapshotWhen::step) signal_.emplace();
}

void Inspector::before_step(int64_t step, int64_t first_step) {
  if (profile_done_ || profile_ || step < first_step + warm_up_steps(steps_ - first_step)) return;
  profile_.emplace(device_);
}

void Inspector::after_step(const Reading& reading) {
  if (profile_ && !profile_done_) {
    ++profiled_;
    last_profiled_ = reading.step;
    if (profiled_ == monitor_.profile_steps) end_profile();
  }
  if (signal_ && SnapshotSignal::take())
    std::cout << "SIGUSR1: wrote " << snapshots_->take(reading).string() << std::endl;
}

void Inspector::refused(const std::optional<Refusal>& refusal) {
  if (snapshots_)
    std::cout << "out of memory: wrote " << snapshots_->take_refusal(refusal).string() << std::endl;
}

void Inspector::finish() {
  if (profile_ && !profile_done_ && profiled_ > 0) end_profile();
  profile_.reset();
}

void Inspector::end_profile() {
  profile_done_ = true;
  const std::filesystem::path trace = folder_ / "trace.json", path = folder_ / "profile.txt";
  const std::string text = table_text(profile_->finish(trace), last_profiled_, profiled_);
  profile_.reset();
  std::ofstream out(path);
  out << text;
  out.close();
  if (!out) throw UserError("cannot write " + path.string() + ": is the disk full or the folder read-only?");
  std::cout << text << "wrote " << path.string() << " and " << trace.string() << std::endl;
}

}  // namespace moelab
