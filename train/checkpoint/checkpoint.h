#pragma once
#include <cstdint>
#include <filesystem>
#include <future>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "train/checkpoint/file_io.h"
#include "train/checkpoint/safetensors_file.h"

// Checkpoints that survive a crash at any moment. A folder CHECKPOINTS/step-N holds
//   model.safetensors, optimizer.safetensors
//   state.json      {"step", "tokens", "state"}: the latter whatever the trainer keeps (RNG, data cursor, …)
//   config.yaml, tokenizer.json, …   texts that the caller gives
//   manifest.json   size and xxh3-128 of each file and tensor (manifest.h)
// and CHECKPOINTS/LATEST names the newest, for people and scripts; loading looks at the folders themselves.
//
// A checkpoint is written to step-N.tmp-PID, each file fsynced, the manifest last, the folder fsynced,
// renamed to step-N, the parent fsynced. So a folder named step-N is always whole; what a crash leaves under
// a temporary name is deleted when the next writer opens. Folders that are damaged all the same are renamed
// to step-N.damaged, those of an abandoned branch (a higher step than the one just saved) to
// step-N.superseded; neither is ever deleted.
namespace moelab {

struct TrainingState {
  int64_t step = 0;
  int64_t tokens = 0;
  std::string json;  // any JSON value; comes back equal in value, not in white space. Empty: null
};

struct CheckpointContent {
  TrainingState state;
  std::vector<TensorEntry> model, optimizer;
  std::map<std::string, std::string> files;  // name -> text: config.yaml, tokenizer.json
  std::string commit;                        // of the program that trains
};

// Writes one checkpoint in the calling thread, as described above, and deletes all but the `keep` newest. One
// of the same step is replaced in one instant; those of higher steps are set aside. Returns the bytes
// written. Throws UserError (disk full and the like: the message names file and errno) and leaves older
// checkpoints as they were.
int64_t write_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content, int64_t keep);

// What one save cost.
struct SaveCost {
  int64_t step = 0;
  int64_t bytes = 0;           // written to disk
  double blocked_seconds = 0;  // training stood still: waiting for the save before, and copying
  double write_seconds = 0;    // the writer thread's, beside training
};

// What all saves of a writer cost.
struct SaveCosts {
  int64_t count = 0;
  double blocked_seconds = 0, write_seconds = 0;  // sums of SaveCost's
  SaveCost last;
};

// Saves beside training. One writer a folder: a second one, in whatever process, is refused with a UserError.
class CheckpointWriter {
 public:
  // Creates the folder if need be and deletes what crashed writers left. keep >= 1: how many stay.
  CheckpointWriter(std::filesystem::path folder, int64_t keep);
  // Waits; an error nobody waited for goes to stderr.
  ~CheckpointWriter();

  // Waits for the save before, throws its error if it failed, copies the tensors to host memory (ledger
  // Home::host) and returns; a thread does the rest, write_checkpoint. A save that failed leaves the writer
  // usable.
  void save(const CheckpointContent& content);
  // Returns when everything is on disk; throws the error of a save that failed, once.
  void wait();
  // Whether a save is under way, with its copies in memory.
  bool saving() const;
  // Of the saves that wait() or save() has waited for, without those that failed.
  const SaveCosts& costs() const { return costs_; }

 private:
  std::filesystem::path folder_;
  int64_t keep_;
  FileDescriptor lock_;  // flock on the folder, gone with the process
  std::future<SaveCost> pending_;
  SaveCosts costs_;
};

// A checkpoint, verified, its files open.
struct LoadedCheckpoint {
  std::filesystem::path path;
  TrainingState state;
  std::string commit;
  SafetensorsFile model, optimizer;
  std::map<std::string, std::string> files;  // the caller's texts
};

// The checkpoint in `folder` (…/step-N, or wherever it was copied). Every bit of every file is verified; what
// is wrong is a UserError naming the file.
LoadedCheckpoint load_checkpoint(const std::filesystem::path& folder);

// The newest good checkpoint below `checkpoints`, of step `at_most` or earlier. Damaged ones are renamed to
// step-N.damaged, said on stderr, and passed over. Throws UserError when none is left, and at once when a
// file can't be opened for a reason that doesn't lie in the checkpoint (permissions, too many open files).
LoadedCheckpoint load_latest(const std::filesystem::path& checkpoints,
                             int64_t at_most = std::numeric_limits<int64_t>::max());

// The checkpoint in `folder`, or, where that is a folder of checkpoints or of a run (which has them in
// checkpoints/), the newest good one there.
LoadedCheckpoint load_checkpoint_in(const std::filesystem::path& folder);

// The checkpoint in `folder`; where that is a step-N and damaged, the newest good one of an earlier step
// beside it, as load_latest does and says it.
LoadedCheckpoint load_checkpoint_or_earlier(const std::filesystem::path& folder);

// The steps that have a folder step-N, rising; empty when `checkpoints` doesn't exist.
std::vector<int64_t> list_checkpoints(const std::filesystem::path& checkpoints);

}  // namespace moelab
