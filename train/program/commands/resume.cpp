#include "train/program/commands/resume.h"

#include <string>

#include "moe/settings/error.h"
#include "train/settings/load.h"
#include "train/settings/print.h"

namespace moelab {

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
