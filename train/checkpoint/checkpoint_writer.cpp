#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "kernels/memory/ledger.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/hash.h"
#include "train/checkpoint/manifest.h"
#include "train/io/folder_lock.h"
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
    copies.push_back({entry.name, copy.copy_(entry.tensor), entry.part, entry.elsewhere});
  }
  return copies;
}

std::string state_text(const TrainingState& state) {
  const std::string text = "{\"step\":" + std::to_string(state.step) +
                           ",\"tokens\":" + std::to_string(state.tokens) +
                           ",\"state\":" + (state.json.empty() ? "null" : state.json) +
                           (state.evaluation_due ? ",\"evaluation_due\":true}\n" : "}\n");
  parse_json(text, "the training state");  // refuses to save what could not be loaded
  return text;
}

ManifestFile write_tensors(const fs::path& path, const std::vector<TensorEntry>& entries) {
  ManifestFile file;
  file.digest = write_safetensors(path, entries, {},
                                  [&](const SafetensorsInfo& info, std::span<const std::byte> bytes) {
                                    file.tensors[info.name] = {info.type, info.shape, xxh3_hex(bytes)};
                                  });
  for (const TensorEntry& entry : entries) file.tensors.at(entry.name).part = entry.part;
  return file;
}

// What this rank has to write.
std::vector<TensorEntry> own(std::vector<TensorEntry> entries) {
  std::erase_if(entries, [](const TensorEntry& entry) {
    return entry.elsewhere || (entry.part && entry.tensor.numel() == 0);
  });
  return entries;
}

// Writes this rank's tensors. Several ranks leave word of them for the first, in a manifest of their own.
Manifest write_part(const fs::path& folder, const CheckpointContent& content, const Communicator& ranks) {
  const bool alone = ranks.size() == 1;
  const auto named = [&](std::string_view name) {
    return alone ? std::string(name) : name_of_rank(name, ranks.rank());
  };
  Manifest manifest;
  manifest.commit = content.commit;
  const auto write = [&](std::string_view name, const std::vector<TensorEntry>& entries) {
    manifest.files[named(name)] = write_tensors(folder / named(name), own(entries));
  };
  write(kModelName, content.model);
  write(kOptimizerName, content.optimizer);
  if (ranks.rank() > 0) write_text_file(folder / named(kManifestName), manifest_text(manifest));
  return manifest;
}

// Adds what the other ranks have written.
void take_parts(const fs::path& folder, Manifest& manifest, const Communicator& ranks) {
  for (int64_t r = 1; r < ranks.size(); ++r) {
    const fs::path path = folder / name_of_rank(kManifestName, r);
    std::error_code error;
    if (!fs::exists(path, error)) {
      throw UserError(path.string() + ": rank " + std::to_string(r) +
                      " has written it, and rank 0 does not see it: checkpoint.dir must be a folder that the "
                      "machines of all ranks share");
    }
    manifest.files.merge(parse_manifest(read_text_file(path, kMaxCheckpointText), path.string()).files);
    remove_tree(path);
  }
}

// Writes all but the tensors, the manifest last. Returns the bytes of the whole checkpoint.
int64_t finish(const fs::path& folder, const CheckpointContent& content, Manifest manifest) {
  manifest.files[std::string(kStateName)] = {write_text_file(folder / kStateName, state_text(content.state)),
                                             {}};
  for (const auto& [name, text] : content.files) {
    manifest.files[name] = {write_text_file(folder / name, text), {}};
  }
  uint64_t bytes = write_text_file(folder / kManifestName, manifest_text(manifest)).size;
  for (const auto& [name, file] : manifest.files) bytes += file.digest.size;
  return static_cast<int64_t>(bytes);
}

// Returns work(), which fills `temporary` and renames it. On an error, deletes `temporary` to make room for
// the next attempt and rethrows. If the deletion fails too, the next writer cleans up.
template <class Work>
auto or_remove(const fs::path& temporary, const Work& work) {
  try {
    return work();
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
}

// Runs `work` of one stage of the save of `step` on each rank, and returns what the first rank's gave. Throws
// when any rank's threw: that one its own error, the others one that names it.
int64_t together(Communicator& ranks, int64_t step, const fs::path& checkpoint,
                 const std::function<int64_t()>& work) {
  std::exception_ptr error;
  std::array<int64_t, 3> words = {step};  // then whether it failed, and what it gave
  try {
    words[2] = work();
  } catch (...) {
    words[1] = 1;
    error = std::current_exception();
  }
  std::vector<int64_t> all;
  try {
    all = ranks.agree(words);
  } catch (...) {
    if (!error) throw;
  }
  if (error) std::rethrow_exception(error);
  for (int64_t r = 0; r < ranks.size(); ++r) {
    TORCH_CHECK(all[3 * r] == step, "rank ", r, " saves step ", all[3 * r], ", and this one step ", step);
    if (all[3 * r + 1] != 0) {
      throw UserError(checkpoint.string() + ": not saved, because rank " + std::to_string(r) +
                      " could not write its part");
    }
  }
  return all[2];
}

int64_t write_whole(const fs::path& folder, const CheckpointContent& content, Communicator& ranks) {
  const std::string name = step_name(content.state.step);
  const bool first = ranks.rank() == 0;
  const auto stage = [&](const auto& work) {
    return together(ranks, content.state.step, folder / name, work);
  };
  fs::path temporary = temporary_name(folder, name);
  const int64_t pid = stage([&]() -> int64_t {
    if (!first) return 0;
    remove_tree(temporary);  // left by an earlier attempt
    create_folders(temporary);
    return ::getpid();
  });
  if (!first) temporary = temporary_name(folder, name, pid);
  const auto fill_and_rename = [&] {
    Manifest manifest;
    stage([&]() -> int64_t {
      manifest = write_part(temporary, content, ranks);
      return 0;
    });
    return stage([&]() -> int64_t {
      if (!first) return 0;
      take_parts(temporary, manifest, ranks);
      const int64_t bytes = finish(temporary, content, std::move(manifest));
      sync_folder(temporary);
      const bool replaced = exchange_or_rename(temporary, folder / name);
      sync_folder(folder);
      if (replaced) remove_tree(temporary);
      return bytes;
    });
  };
  return first ? or_remove(temporary, fill_and_rename) : fill_and_rename();
}

void point_latest_at(const fs::path& folder, int64_t step) {
  const fs::path temporary = temporary_name(folder, "LATEST");
  remove_tree(temporary);  // left by an earlier attempt
  or_remove(temporary, [&] {
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
    const bool taken = name == kStateName || is_name(name, kModelName) || is_name(name, kOptimizerName) ||
                       is_name(name, kManifestName);
    TORCH_CHECK(!taken && !name.empty() && name.find('/') == std::string::npos,
                "not a name for a text: ", name);
  }
}

}  // namespace

int64_t write_checkpoint(const fs::path& folder, const CheckpointContent& content, int64_t keep,
                         Communicator& ranks) {
  check_file_names(content);
  const int64_t bytes = write_whole(folder, content, ranks);
  if (ranks.rank() > 0) return bytes;
  set_branch_aside(folder, content.state.step);
  point_latest_at(folder, content.state.step);
  prune(folder, keep);
  return bytes;
}

CheckpointWriter::CheckpointWriter(fs::path folder, int64_t keep, Communicator& ranks)
    : folder_(std::move(folder)), keep_(keep), ranks_(ranks) {
  TORCH_CHECK(keep_ >= 1, "a writer keeps at least one checkpoint");
  if (ranks_.rank() > 0) return;
  create_folders(folder_);
  lock_ = lock_folder(folder_);
  if (!lock_) {
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
  CheckpointContent copy{content.state, snapshot(own(content.model)), snapshot(own(content.optimizer)),
                         content.files, content.commit};
  SaveCost cost;
  cost.step = content.state.step;
  cost.blocked_seconds = seconds_since(start);
  pending_ = std::async(std::launch::async, [folder = folder_, keep = keep_, &ranks = ranks_, cost,
                                             copy = std::move(copy)]() mutable {
    const Clock::time_point begin = Clock::now();
    cost.bytes = write_checkpoint(folder, copy, keep, ranks);
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
