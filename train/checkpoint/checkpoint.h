#pragma once
#include <cstdint>
#include <filesystem>
#include <future>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "moe/communicator.h"
#include "train/checkpoint/checkpoint_tensors.h"
#include "train/checkpoint/file_io.h"
#include "train/checkpoint/safetensors_file.h"

// Checkpoints that survive a crash at any moment. A folder CHECKPOINTS/step-N holds
//   model.safetensors, optimizer.safetensors
//   state.json      {"step", "tokens", "state"}; "state" is whatever the trainer keeps (RNG, data cursor, …)
//   config.yaml, tokenizer.json, …   texts from the caller
//   manifest.json   size and xxh3-128 of each file and tensor (manifest.h)
// of ranks that divide the state, instead of the first two,
//   model-R.safetensors, optimizer-R.safetensors   what rank R holds of each tensor
// and CHECKPOINTS/LATEST names the newest, for people and scripts; loading looks at the folders themselves.
//
// A checkpoint is written to step-N.tmp-PID: each file is fsynced, the manifest last, then the folder is
// fsynced and renamed to step-N, and the parent is fsynced. Ranks write their own files there; once all have,
// rank 0 does the rest. So a folder named step-N is always complete.
// Temporary folders left by a crash are deleted when the next writer opens. A folder that is damaged all the
// same is renamed to step-N.damaged; one from an abandoned branch (a higher step than the one just saved) is
// renamed to step-N.superseded. Neither is deleted but by remove_checkpoints().
namespace moelab {

struct TrainingState {
  int64_t step = 0;
  int64_t tokens = 0;
  std::string json;             // any JSON value; loading returns it equal up to white space. Empty: null
  bool evaluation_due = false;  // the run was stopped in the evaluation after `step`
};

struct CheckpointContent {
  TrainingState state;
  std::vector<TensorEntry> model, optimizer;  // of several ranks each has its own; together they have all
  std::map<std::string, std::string> files;   // name -> text: config.yaml, tokenizer.json
  std::string commit;                         // of the program that trains
};

// Writes one checkpoint in the calling thread, as described above, and deletes all but the `keep` newest. An
// existing checkpoint of the same step is replaced atomically; those of higher steps are renamed to
// step-N.superseded. Returns the bytes written. Throws UserError (disk full and the like: the message names
// file and errno) and leaves older checkpoints as they were.
//
// `ranks` that divide the state call it together, with a folder that all of them see. When one of them cannot
// write its part, all throw; what follows, such as deleting old checkpoints, is the first one's alone. Throws
// c10::Error when one is gone.
int64_t write_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content, int64_t keep,
                         Communicator& ranks = one_rank());

// What one save cost.
struct SaveCost {
  int64_t step = 0;
  int64_t bytes = 0;           // written to disk
  double blocked_seconds = 0;  // training stood still: waiting for the previous save, and copying
  double write_seconds = 0;    // in the writer thread, concurrent with training
};

// What all saves of a writer cost.
struct SaveCosts {
  int64_t count = 0;
  double blocked_seconds = 0, write_seconds = 0;  // sums over the saves
  SaveCost last;
};

// Saves concurrently with training. One writer per folder: a second one, in any process, gets a UserError.
// Ranks that divide the state make the same calls on a writer each.
class CheckpointWriter {
 public:
  // Creates the folder if needed and deletes what crashed writers left. keep >= 1: how many checkpoints stay.
  // `ranks`: used by nothing else while the writer lives.
  CheckpointWriter(std::filesystem::path folder, int64_t keep, Communicator& ranks = one_rank());
  // Waits for the current save; prints its error to stderr.
  ~CheckpointWriter();

  // Waits for the previous save and throws its error if it failed, copies the tensors to host memory (ledger
  // Home::host) and returns. A thread then runs write_checkpoint. The writer stays usable after a failed
  // save.
  void save(const CheckpointContent& content);
  // Returns when everything is on disk. Throws the error of a failed save, once.
  void wait();
  // True while a save is running, with its copies in memory.
  bool saving() const;
  // Costs of successful saves that wait() or save() has waited for.
  const SaveCosts& costs() const { return costs_; }

 private:
  std::filesystem::path folder_;
  int64_t keep_;
  Communicator& ranks_;
  std::optional<FileDescriptor> lock_;  // of the folder; none: not rank 0
  std::future<SaveCost> pending_;
  SaveCosts costs_;
};

// A verified checkpoint with its files open.
struct LoadedCheckpoint {
  std::filesystem::path path;
  TrainingState state;
  std::string commit;
  CheckpointTensors model, optimizer;
  std::map<std::string, std::string> files;  // the caller's texts
};

// Loads the checkpoint in `folder` (…/step-N, or wherever it was copied). Verifies every byte of every file,
// unless another rank just has; throws UserError that names the bad file.
LoadedCheckpoint load_checkpoint(const std::filesystem::path& folder, bool verified = false);

// The newest intact checkpoint below `checkpoints`, of step `at_most` or earlier. Damaged ones are skipped,
// renamed to step-N.damaged and reported on stderr. Throws UserError when none is left, or at once when a
// file can't be opened for a reason outside the checkpoint (permissions, too many open files).
LoadedCheckpoint load_latest(const std::filesystem::path& checkpoints,
                             int64_t at_most = std::numeric_limits<int64_t>::max());

// The checkpoint in `folder`; if `folder` holds checkpoints or a run (with its checkpoints/), the newest
// intact one there.
LoadedCheckpoint load_checkpoint_in(const std::filesystem::path& folder);

// The checkpoint in `folder`. If that is a damaged step-N, the newest intact one of an earlier step beside
// it, reported as by load_latest.
LoadedCheckpoint load_checkpoint_or_earlier(const std::filesystem::path& folder);

// The steps that have a folder step-N, ascending; empty when `checkpoints` doesn't exist.
std::vector<int64_t> list_checkpoints(const std::filesystem::path& checkpoints);

// Deletes all that writers leave in `checkpoints`, what was set aside included, and nothing else. Throws
// IoError.
void remove_checkpoints(const std::filesystem::path& checkpoints);

}  // namespace moelab
