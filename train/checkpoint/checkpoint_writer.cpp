#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "kernels/memory/ledger.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/hash.h"
#include "train/checkpoint/manifest.h"
#include "train/io/json_text.h"

namespace moelab {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Copies in host memory, because training goes on to change the originals.
std::vector<TensorEntry> snapshot(const std::vector<TensorEntry>& entries) {
  const HomeScope host(Home::host);
  const at::NoGradGuard no_grad;
  std::vector<TensorEntry> copies;
  copies.reserve(entries.size());
  for (const TensorEntry& entry : entries) {
    const at::Tensor copy = at::empty(entry.tensor.sizes(), at::TensorOptions(entry.tensor.scalar_type()));
    copies.push_back({entry.name, copy.copy_(entry.tensor)});
  }
  return copies;
}

std::string state_text(const TrainingState& state) {
  const std::string text = "{\"step\":" + std::to_string(state.step) +
                           ",\"tokens\":" + std::to_string(state.tokens) +
                           ",\"state\":" + (state.json.empty() ? "null" : state.json) + "}\n";
  parse_json(text, "the training state");  // refuses to save what could not be loaded
  return text;
}

ManifestFile write_tensors(const fs::path& path, const std::vector<TensorEntry>& entries) {
  ManifestFile file;
  file.digest = write_safetensors(path, entries, {},
                                  [&](const SafetensorsInfo& info, std::span<const std::byte> bytes) {
                                    file.tensors[info.name] = {info.type, info.shape, xxh3_hex(bytes)};
                                  });
  return file;
}

// Fills the folder, the manifest last. Returns the bytes written.
int64_t fill(const fs::path& folder, const CheckpointContent& content) {
  Manifest manifest;
  manifest.commit = content.commit;
  manifest.files[std::string(kModelName)] = write_tensors(folder / kModelName, content.model);
  manifest.files[std::string(kOptimizerName)] = write_tensors(folder / kOptimizerName, content.optimizer);
  manifest.files[std::string(kStateName)] = {write_text_file(folder / kStateName, state_text(content.state)),
                                             {}};
  for (const auto& [name, text] : content.files) {
    manifest.files[name] = {write_text_file(folder / name, text), {}};
  }
  uint64_t bytes = write_text_file(folder / kManifestName, manifest_text(manifest)).size;
  for (const auto& [name, file] : manifest.files) bytes += file.digest.size;
  return static_cast<int64_t>(bytes);
}

// Runs `work`, which fills `temporary` and renames it. On an error, deletes `temporary` to make room for the
// next attempt and rethrows. If the deletion fails too, the next writer cleans up.
template <class Work>
void fill_and_rename(const fs::path& temporary, const Work& work) {
  remove_tree(temporary);  // left by an earlier attempt
  try {
    work();
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
}

int64_t write_whole(const fs::path& folder, const CheckpointContent& content) {
  const std::string name = step_name(content.state.step);
  const fs::path temporary = temporary_name(folder, name);
  int64_t bytes = 0;
  fill_and_rename(temporary, [&] {
    create_folders(temporary);
    bytes = fill(temporary, content);
    sync_folder(temporary);
    const bool replaced = exchange_or_rename(temporary, folder / name);
    sync_folder(folder);
    if (replaced) remove_tree(temporary);
  });
  return bytes;
}

void point_latest_at(const fs::path& folder, int64_t step) {
  const fs::path temporary = temporary_name(folder, "LATEST");
  fill_and_rename(temporary, [&] {
    write_text_file(temporary, step_name(step) + "\n");
    rename_path(temporary, folder / "LATEST");
    sync_folder(folder);
  });
}

// After training went back to an older step, checkpoints of later steps are renamed: the newest folder must
// be the newest state.
void set_branch_aside(const fs::path& folder, int64_t step) {
  for (const int64_t other : list_checkpoints(folder)) {
    if (other <= step) continue;
    const fs::path target = rename_aside(folder, other, "superseded");
    std::cerr << "moelab: training went back to before step " << other << ": its checkpoint is now "
              << target.string() << '\n';
  }
}

void prune(const fs::path& folder, int64_t keep) {
  const std::vector<int64_t> steps = list_checkpoints(folder);
  for (size_t i = 0; i + static_cast<size_t>(keep) < steps.size(); ++i) {
    // Renamed first, so that a half-deleted folder never has a checkpoint's name.
    const fs::path temporary = temporary_name(folder, step_name(steps[i]) + ".pruned");
    remove_tree(temporary);
    rename_path(folder / step_name(steps[i]), temporary);
    remove_tree(temporary);
  }
}

void check_file_names(const CheckpointContent& content) {
  for (const auto& [name, text] : content.files) {
    const bool own =
        name == kModelName || name == kOptimizerName || name == kStateName || name == kManifestName;
    TORCH_CHECK(!own && !name.empty() && name.find('/') == std::string::npos,
                "not a name for a text: ", name);
  }
}

}  // namespace

int64_t write_checkpoint(const fs::path& folder, const CheckpointContent& content, int64_t keep) {
  check_file_names(content);
  const int64_t bytes = write_whole(folder, content);
  set_branch_aside(folder, content.state.step);
  point_latest_at(folder, content.state.step);
  prune(folder, keep);
  return bytes;
}

CheckpointWriter::CheckpointWriter(fs::path folder, int64_t keep) : folder_(std::move(folder)), keep_(keep) {
  TORCH_CHECK(keep_ >= 1, "a writer keeps at least one checkpoint");
  create_folders(folder_);
  lock_ = FileDescriptor(folder_, O_RDONLY | O_DIRECTORY);
  // File systems without locks are not guarded.
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw UserError(folder_.string() +
                    ": another run is writing its checkpoints there; give this one its own run.dir");
  }
  for (const fs::path& path : leftovers(folder_)) remove_tree(path);
}

CheckpointWriter::~CheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    std::cerr << "moelab: the last checkpoint was not saved: " << error.what() << '\n';
  }
}

void CheckpointWriter::save(const CheckpointContent& content) {
  const Clock::time_point start = Clock::now();
  wait();
  CheckpointContent copy{content.state, snapshot(content.model), snapshot(content.optimizer), content.files,
                         content.commit};
  SaveCost cost;
  cost.step = content.state.step;
  cost.blocked_seconds = seconds_since(start);
  pending_ = std::async(std::launch::async,
                        [folder = folder_, keep = keep_, cost, copy = std::move(copy)]() mutable {
                          const Clock::time_point begin = Clock::now();
                          cost.bytes = write_checkpoint(folder, copy, keep);
                          cost.write_seconds = seconds_since(begin);
                          return cost;
                        });
}

bool CheckpointWriter::saving() const {
  return pending_.valid() && pending_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void CheckpointWriter::wait() {
  if (!pending_.valid()) return;
  costs_.last = pending_.get();
  ++costs_.count;
  costs_.blocked_seconds += costs_.last.blocked_seconds;
  costs_.write_seconds += costs_.last.write_seconds;
}

}  // namespace moelab
