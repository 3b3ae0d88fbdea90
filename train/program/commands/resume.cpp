#include "train/program/commands/resume.h"

#include <filesystem>
#include <string>

#include "moe/settings/error.h"
#include "train/parallel/data_ranks.h"
#include "train/parallel/ranks.h"
#include "train/settings/load.h"
#include "train/settings/print.h"

namespace moelab {
namespace {

// A run is not begun anew, unasked, because its checkpoints were damaged.
void refuse_damaged(const std::filesystem::path& folder) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".damaged") != std::string::npos)
      throw UserError("--resume auto: " + folder.string() + " has no checkpoint left, and " + name +
                      "; move that away to begin anew");
  }
}

// On one rank.
std::optional<LoadedCheckpoint> find_checkpoint(const std::string& resume, const Settings& settings) {
  const std::filesystem::path folder = settings.checkpoint.dir;
  if (resume == "auto" && list_checkpoints(folder).empty()) {
    refuse_damaged(folder);
    return std::nullopt;
  }
  return resume == "auto" || resume == "latest" ? load_latest(folder) : load_checkpoint_or_earlier(resume);
}

}  // namespace

std::optional<LoadedCheckpoint> find_checkpoint(const std::string& resume, const Settings& settings,
                                                Communicator& control) {
  std::optional<LoadedCheckpoint> found;
  on_first_rank(control, [&] { found = find_checkpoint(resume, settings); });
  if (control.size() == 1) return found;
  const std::string path = of_first_rank(control, found ? found->path.string() : "");
  if (!found && !path.empty()) found = load_checkpoint(path, true);
  return found;
}

void check_same_model(const LoadedCheckpoint& checkpoint, const Settings& settings) {
  if (!checkpoint.files.contains("config.yaml")) return;
  const std::string config = (checkpoint.path / "config.yaml").string();
  const nlohmann::ordered_json there = settings_json(load_settings({.config = config}))["model"];
  const nlohmann::ordered_json here = settings_json(settings)["model"];
  std::string changed;
  for (const auto& [name, value] : there.items()) {
    if (name == "preset" || here.at(name) == value) continue;
    changed += (changed.empty() ? "" : ", ") + ("model." + name) + " was " + value.dump() + ", now " +
               here.at(name).dump();
  }
  if (!changed.empty()) {
    throw UserError("--resume " + checkpoint.path.string() + ": another model: " + changed +
                    "; resume with --config " + config);
  }
}

}  // namespace moelab
