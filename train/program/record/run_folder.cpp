#include "train/program/record/run_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "moe/settings/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/io/folder_lock.h"
#include "train/io/json_lines.h"
#include "train/program/tensorboard/event_file.h"

namespace moelab {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 7> kFiles = {"config.yaml", "metrics.jsonl", "summary.json",
                                                    "memory.json", "samples.jsonl", "profile.txt",
                                                    "trace.json"};

bool is_file_of_a_run(std::string_view name) {
  if (name.ends_with(".tmp")) name.remove_suffix(4);  // of a write that was cut off
  const bool snapshot =
      name.starts_with("snapshot-") && (name.ends_with(".json") || name.ends_with(".pickle"));
  return snapshot || std::find(kFiles.begin(), kFiles.end(), name) != kFiles.end();
}

void remove_records(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (!entry.is_directory() && is_file_of_a_run(entry.path().filename().string()))
      files.push_back(entry.path());
  for (const fs::path& file : files) fs::remove(file);
  remove_event_files(folder);
}

// What ranks but the first left. A folder that is empty then goes too.
void remove_ranks(const fs::path& folder) {
  if (!fs::is_directory(folder)) return;
  const std::vector<fs::directory_entry> ranks(fs::directory_iterator(folder), fs::directory_iterator{});
  for (const fs::directory_entry& rank : ranks) {
    if (!rank.is_directory()) continue;
    remove_records(rank.path());
    if (fs::is_empty(rank.path())) fs::remove(rank.path());
  }
  if (fs::is_empty(folder)) fs::remove(folder);
}

bool same_folder(const fs::path& one, const fs::path& other) {
  std::error_code missing;
  return fs::equivalent(one, other, missing);
}

std::string ways_on(const Settings& settings, const std::string& resume, bool saved) {
  const std::string elsewhere = settings.run.dir == "runs/" + settings.run.name
                                    ? "run.name=NAME starts another run beside it"
                                    : "run.dir=FOLDER starts another run elsewhere";
  if (!resume.empty()) return elsewhere + " from " + resume;
  return (saved ? "--resume latest goes on with it, " : "it left no checkpoint to go on from; ") + elsewhere +
         ", --overwrite deletes it";
}

}  // namespace

bool goes_on_in_folder(const Settings& settings, const std::string& resume) {
  return resume == "latest" || resume == "auto" ||
         (!resume.empty() && same_folder(fs::path(resume) / "..", settings.checkpoint.dir));
}

std::string no_folder(const Settings& settings) {
  for (const auto& [key, folder] :
       {std::pair("run.dir", settings.run.dir), std::pair("checkpoint.dir", settings.checkpoint.dir)}) {
    std::error_code error;
    fs::path existing = folder;
    while (existing.has_parent_path() && !fs::exists(existing, error) && existing != existing.parent_path())
      existing = existing.parent_path();
    if (fs::exists(existing, error) && !fs::is_directory(existing, error))
      return std::string(key) + "=" + folder + ": " + existing.string() +
             " is a file; give a folder, which may be new";
  }
  return "";
}

std::string nothing_to_resume(const Settings& settings, const std::string& resume) {
  std::error_code error;
  if (resume == "latest" && list_checkpoints(settings.checkpoint.dir).empty())
    return "--resume latest: there is no checkpoint in " + settings.checkpoint.dir +
           "; leave --resume out to start this run, or name the run to go on with by run.name or run.dir";
  const bool path = !resume.empty() && resume != "latest" && resume != "auto";
  return path && !fs::exists(resume, error) ? "--resume " + resume + ": no such folder" : "";
}

std::string run_in_the_way(const Settings& settings, const std::string& resume) {
  if (goes_on_in_folder(settings, resume)) return "";
  const std::vector<int64_t> saved = list_checkpoints(settings.checkpoint.dir);
  const std::optional<int64_t> recorded = last_step(fs::path(settings.run.dir) / "metrics.jsonl");
  if (saved.empty() && !recorded) return "";
  const bool own = recorded || settings.checkpoint.dir == settings.run.dir + "/checkpoints";
  const int64_t steps = std::max(recorded.value_or(0), saved.empty() ? 0 : saved.back());
  return (own ? settings.run.dir : settings.checkpoint.dir) + " holds a run of " + std::to_string(steps) +
         (steps == 1 ? " step; " : " steps; ") + ways_on(settings, resume, !saved.empty());
}

bool ended_after(const Settings& settings, int64_t step) {
  const fs::path folder = settings.run.dir;
  std::ifstream file(folder / "summary.json");
  const nlohmann::json summary = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return summary.is_object() && summary.value("status", "") == "ok" &&
         summary.value("reason", nlohmann::json()).is_null() && last_step(folder / "metrics.jsonl") == step;
}

RunFolder::RunFolder(const Settings& settings, bool first_rank)
    : folder_(settings.run.dir), checkpoints_(settings.checkpoint.dir) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error)
    throw UserError("cannot create the folder of the run, " + folder_.string() + ": " + error.message());
  if (!first_rank || same_folder(folder_, checkpoints_))
    return;  // that one is locked by the writer of checkpoints
  lock_ = lock_folder(folder_);
  if (!lock_)
    throw UserError(folder_.string() + ": another run is writing there; wait until it has ended, or choose " +
                    "another run.name");
}

void RunFolder::clear(bool checkpoints) const {
  try {
    remove_records(folder_);
    remove_ranks(folder_ / "ranks");
  } catch (const fs::filesystem_error& error) {
    throw UserError("cannot delete what an earlier run left in " + folder_.string() + ": " +
                    error.code().message());
  }
  if (checkpoints) remove_checkpoints(checkpoints_);
}

}  // namespace moelab
