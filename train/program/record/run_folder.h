#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "train/io/file_descriptor.h"
#include "train/settings/settings.h"

namespace moelab {

// Whether `resume`, train's --resume, goes on with the run in run.dir: latest, auto, or a checkpoint in
// checkpoint.dir.
bool goes_on_in_folder(const Settings& settings, const std::string& resume);

// Why run.dir or checkpoint.dir can be no folder, one line: a file lies there. Empty: they can.
std::string no_folder(const Settings& settings);

// Why `resume` has nothing to go on from, one line: latest, and there is no checkpoint, or a folder that does
// not exist. Empty: it may have; checkpoints are not read here.
std::string nothing_to_resume(const Settings& settings, const std::string& resume);

// Whether the run that is in run.dir ended well after that step.
bool ended_after(const Settings& settings, int64_t step);

// Why run.dir and checkpoint.dir are not free for a run that does not go on there, one line: they hold a run,
// which has taken a step or saved a checkpoint. Empty: they are free.
std::string run_in_the_way(const Settings& settings, const std::string& resume);

// A run's folder, while it writes there.
class RunFolder {
 public:
  // Creates run.dir; the first rank, for all, locks it. Throws UserError when that fails or another run holds
  // it.
  RunFolder(const Settings& settings, bool first_rank);

  // Deletes what earlier runs left in run.dir, of all ranks, so that their records never mix with this run's;
  // `checkpoints`: those in checkpoint.dir too. All other files stay. Throws UserError.
  void clear(bool checkpoints) const;

 private:
  std::filesystem::path folder_, checkpoints_;
  std::optional<FileDescriptor> lock_;
};

}  // namespace moelab
