#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/config/settings.h"
#include "train/generate/sampler.h"

// The program's commands, after the command line was read and the settings checked. Each returns the exit
// code (0, or 3 when the memory budget cannot be met) and throws UserError for a mistake of the user's.
namespace moelab {

struct TrainOptions {
  std::string resume;  // "latest", the folder of a checkpoint, or empty
  // Before each try of a step, with the steps taken so far: where tests change the budget.
  std::function<void(int64_t steps)> before_step = {};
};

int train_command(const Settings& settings, const TrainOptions& options, const std::string& command_line);

// `checkpoint`: the folder of one; empty: the newest of checkpoint.dir.
int eval_command(const Settings& settings, const std::string& checkpoint, const std::string& command_line);

// `ranks` above 1: also what each of so many would hold, if they sharded its state.
int estimate_command(const Settings& settings, bool json, int64_t ranks);

// A model before any technique is chosen for it.
struct ModelCall {
  std::string config;  // a named model, a YAML file or a model's folder; empty: the command's own
  std::vector<std::string> overrides;  // key=value, over the table's baseline and under its techniques
  bool json = false;
};

// What the baseline, each single technique and every two of them hold at the peak, by dry run, or why there
// is no such run. JSON of schema 1: model, and cases of techniques, status (ok, refused), reason or peak,
// activations (at the peak), host, nvme in bytes.
int pairs_command(const ModelCall& call);

// For each card size of the presets, the textbook's way and the recommended one: the largest named model that
// fits, and of one model the most layers and the largest micro-batch, by dry run for CUDA unless run.device
// is given. What fits is up to memory.critical of the card in tensors, and all of it in what CUDA's caching
// allocator reserves without a limit (at least what it would under the card's). JSON of schema 1: rows.
int fits_command(const ModelCall& call);

struct PlanCall {
  std::string device = "cpu";       // whose speed is assumed: one of cost_devices()
  std::string out;                  // file for the winner's settings; empty: none
  std::vector<std::string> pinned;  // keys that the user gave, which a plan leaves alone
};

// `base`: resolved, with the budget as memory.limit. Exit code 3 when no combination fits.
int plan_command(const Settings& base, const PlanCall& call);

// A Hugging Face folder as the checkpoint to/step-0, and a checkpoint (or the newest of a folder of such) as
// a Hugging Face folder; `to` must be new or empty.
int import_command(const std::string& from, const std::string& to);
int export_command(const std::string& from, const std::string& to);

struct GenerateCall {
  std::string from;                    // the folder of a checkpoint or of a run
  std::string prompt;                  // text; or
  std::string prompt_file;             // a file of it
  std::vector<std::string> overrides;  // key=value, over the checkpoint's config.yaml
  SamplingOptions sampling;            // stream: of the first sample
  int64_t max_tokens = 200;
  int64_t samples = 1;
};

// Prompt and text to stdout, as it comes; speed and the cache's bytes to stderr. A text is at most
// train.sequence tokens long, prompt included and the last one not: the rotary embedding sets no limit, but
// the model has learned no position past that.
int generate_command(const GenerateCall& call);

}  // namespace moelab
