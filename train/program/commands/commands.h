#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/generate/sampler.h"
#include "train/predict/gpu.h"
#include "train/settings/settings.h"

// The program's commands. The command line has been read and the settings checked before each is called. Each
// returns the exit code (0, or 3 when the memory budget cannot be met) and throws UserError for a mistake of
// the user's.
namespace moelab {

struct TrainOptions {
  std::string resume;  // "latest", "auto", the folder of a checkpoint, or empty
  // Called before each attempt at a step with the number of steps taken so far. Tests change the budget here.
  std::function<void(int64_t steps)> before_step = {};
  bool overwrite = false;                // delete the run that run.dir holds
  std::vector<std::string> pinned = {};  // keys that the user gave, which no proposed combination changes
};

int train_command(const Settings& settings, const TrainOptions& options, const std::string& command_line);

// `checkpoint`: a checkpoint folder; empty: the newest checkpoint in checkpoint.dir.
int eval_command(const Settings& settings, const std::string& checkpoint, const std::string& command_line);

// `ranks` > 1: also prints what each of that many ranks would hold if they sharded the training state.
int estimate_command(const Settings& settings, bool json, int64_t ranks);

// The model that `pairs` and `fits` try techniques on.
struct ModelCall {
  std::string config;  // a named model, a YAML file or a model folder; empty: the command's default
  std::vector<std::string> overrides;  // key=value; override the baseline, and techniques override them
  bool json = false;
  std::vector<std::string> techniques = {};  // fits: rows of the table; empty: the baseline and guides_stack
};

// Dry-runs the baseline, each single technique and each pair of techniques, and prints peak bytes, or why
// that combination is refused. JSON of schema 1: model, and cases of techniques, status (ok, refused), reason
// or peak, activations (at the peak), host, nvme in bytes.
int pairs_command(const ModelCall& call);

// For each card of the GPU presets, and for each of the techniques: the largest named model that fits, and
// for one model the most layers (without techniques given: deep models take long), the largest micro-batch,
// and the longest sequence in steps of 64 tokens (0: not even that). Dry runs for CUDA on that card. A run
// fits when its tensors and cuBLAS's workspaces take at most memory.critical of the card, and what CUDA's
// caching allocator reserves with CUDA's context at most the whole card. The reserve is computed without a
// limit, so it is at least what the allocator would reserve on the card. JSON of schema 1: rows.
int fits_command(const ModelCall& call);

struct QualifyCall {
  bool json = false;
  double patience = 60;  // seconds for one variant
  std::string worker;    // the task of a worker (train/program/qualify/worker.h); empty: start workers
};

// Tries all variants of the kernels on the GPU at the sizes of `settings`, prints them, and writes the record
// from which later runs take theirs. JSON of schema 1: gpu, date, kernels, and tried of operator, variant,
// failure, milliseconds.
int qualify_command(const Settings& settings, const QualifyCall& call);

struct PlanCall {
  std::string device;               // whose speed is assumed: a name in cost_devices()
  std::string out;                  // file for the winner's settings; empty: none
  std::vector<std::string> pinned;  // keys that the user gave; the planner does not change them
  int64_t ranks = 1;                // each with a device of its own
  std::string link;                 // between ranks: a name in link_names() or a rate; empty for one rank
  int64_t machines = 1;             // that the ranks fill evenly; with several, link is that of one machine
  std::string network;              // between machines, likewise; empty for one machine
  Settings given = {};              // resolved: the settings of `command`, which the plan's settings change
  std::string program;              // as the user called it
  std::string command;              // "PROGRAM train …" with what the user gave
  bool json = false;                // print JSON of schema 1
};

// `base`: resolved settings that a plan adds techniques to, with each rank's budget in memory.limit. Exit
// code 3 when no combination fits.
int plan_command(const Settings& base, const PlanCall& call);

// import: converts a Hugging Face folder to the checkpoint to/step-0. export: converts a checkpoint (or the
// newest in a folder of checkpoints) to a Hugging Face folder. `to` must be new or empty.
int import_command(const std::string& from, const std::string& to);
int export_command(const std::string& from, const std::string& to);

struct GenerateCall {
  std::string from;                    // a checkpoint folder or a run folder
  std::string prompt;                  // text; or
  std::string prompt_file;             // a file that holds the text
  std::vector<std::string> overrides;  // key=value; override the checkpoint's config.yaml
  SamplingOptions sampling;            // `stream` is the first sample's
  int64_t max_tokens = 200;
  int64_t samples = 1;
};

// Streams prompt and text to stdout; speed and cache bytes go to stderr. A text, prompt included, is at most
// train.sequence tokens long, not counting the last token, which is never fed back. The rotary embedding sets
// no limit, but the model has learned no position past that.
int generate_command(const GenerateCall& call);

// Answers each line of standard input with a text of at most max_tokens, until it ends. The prompt of an
// answer is all that was said so far, cut at its beginning where train.sequence does not hold it with the
// answer. `prompt`, `prompt_file` and `samples` are not read.
int chat_command(const GenerateCall& call);

}  // namespace moelab
