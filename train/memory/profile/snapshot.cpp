#include "train/memory/profile/snapshot.h"

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#ifdef MOELAB_WITH_CUDA
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <iostream>
#endif

#include "moe/settings/error.h"
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

#ifdef MOELAB_WITH_CUDA
// Makes the allocator record who requested each block, and write a snapshot at the moment it refuses one.
// Later would be too late: when the error has unwound the step, the blocks that filled the device are gone.
void start_history(const fs::path& on_refusal) {
  at::globalContext().lazyInitDevice(c10::kCUDA);  // the allocator exists only after this
  constexpr size_t kEntries = 100'000;             // the newest; some 100 MB of the host's memory
  const std::optional<std::string> all = "all";
  torch::cuda::_record_memory_history(all, all, "all", kEntries);
  c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver([on_refusal](int64_t, size_t, size_t, size_t) {
    try {
      write(on_refusal, torch::cuda::_memory_snapshot_pickled());
    } catch (const UserError& error) {  // not rethrown: the caller should get the refusal
      std::cerr << "moelab: " << error.what() << "\n";
    }
  });
}

std::string pickled_snapshot() { return torch::cuda::_memory_snapshot_pickled(); }
#else
void start_history(const fs::path&) {}
std::string pickled_snapshot() { TORCH_CHECK(false, "snapshots of CUDA memory need a build with CUDA"); }
#endif

}  // namespace

SnapshotSignal::SnapshotSignal() {
  asked = 0;
  std::signal(SIGUSR1, note);
}

SnapshotSignal::~SnapshotSignal() { std::signal(SIGUSR1, SIG_DFL); }

bool SnapshotSignal::take() { return std::exchange(asked, 0) != 0; }

Snapshots::Snapshots(c10::Device device, fs::path folder) : device_(device), folder_(std::move(folder)) {
  if (device_.is_cuda()) start_history(folder_ / "snapshot-oom.pickle");
}

fs::path Snapshots::take(const Reading& r) const {
  const fs::path path = folder_ / ("snapshot-step-" + std::to_string(r.step));
  if (device_.is_cuda()) {
    write(path.string() + ".pickle", pickled_snapshot());
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
