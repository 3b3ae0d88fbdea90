#include "train/memory/profile/snapshot.h"

#include <csignal>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "moe/settings/error.h"
#include "train/memory/profile/gpu_snapshot.h"
#include "train/memory/profile/memory_timeline.h"

namespace moelab {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

volatile std::sig_atomic_t asked = 0;

void note(int) { asked = 1; }

void write(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw UserError("cannot write " + path.string() + ": is the disk full or the folder read-only?");
}

// An oom snapshot is written while the allocator refuses, and its caller should get the refusal.
void write_at_refusal(const fs::path& path, const std::string& text) {
  try {
    write(path, text);
  } catch (const UserError& error) {
    std::cerr << "moelab: " << error.what() << "\n";
  }
}

}  // namespace

SnapshotSignal::SnapshotSignal() {
  asked = 0;
  std::signal(SIGUSR1, note);
}

SnapshotSignal::~SnapshotSignal() { std::signal(SIGUSR1, SIG_DFL); }

bool SnapshotSignal::take() { return std::exchange(asked, 0) != 0; }

Snapshots::Snapshots(c10::Device device, fs::path folder) : device_(device), folder_(std::move(folder)) {
  if (!device_.is_cuda()) return;
  start_gpu_history([path = folder_ / "snapshot-oom.pickle"](const std::string& pickle) {
    write_at_refusal(path, pickle);
  });
}

fs::path Snapshots::take(const Reading& r) const {
  const fs::path path = folder_ / ("snapshot-step-" + std::to_string(r.step));
  if (device_.is_cuda()) {
    write(path.string() + ".pickle", pickled_gpu_snapshot());
    return path.string() + ".pickle";
  }
  const Json out = {{"schema", 1},
                    {"step", r.step},
                    {"allocated_bytes", cpu_ledger().allocated()},
                    {"peak_bytes", r.peak},
                    {"limit_bytes", r.limit},
                    {"bytes_by_kind", held_kinds(cpu_ledger().by_kind())},
                    {"bytes_by_phase", held_kinds_by_phase(r.by_phase)}};
  write(path.string() + ".json", out.dump(1) + "\n");
  return path.string() + ".json";
}

fs::path Snapshots::take_refusal(const std::optional<Refusal>& refusal) const {
  if (device_.is_cuda()) return folder_ / "snapshot-oom.pickle";  // already written, at the refusal
  const Refusal r = refusal.value_or(Refusal{});
  const Json out = {{"schema", 1},
                    {"phase", phase_name(r.phase)},
                    {"requested_bytes", r.requested},
                    {"allocated_bytes", r.allocated},
                    {"limit_bytes", r.limit},
                    {"bytes_by_kind", held_kinds(r.by_kind)}};
  write(folder_ / "snapshot-oom.json", out.dump(1) + "\n");
  return folder_ / "snapshot-oom.json";
}

}  // namespace moelab
