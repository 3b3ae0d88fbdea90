#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/program/command_texts.h"
#include "train/program/commands/commands.h"
#include "train/settings/settings.h"

namespace moelab {

// One invocation of the program.
struct Arguments {
  Command command = Command::train;
  Settings settings;  // resolved and validated
  bool print_config = false;
  std::string filled;      // train, estimate: how full --fill made the card, one line; empty: not asked for
  std::string resume;      // train: "latest", "auto" or a path; empty: start from step 0
  bool overwrite = false;  // train
  std::vector<std::string> given;  // train: keys of the settings on the command line
  std::string checkpoint;          // eval: a path; empty: the newest in checkpoint.dir
  bool json = false;               // estimate, techniques
  int64_t ranks = 1;               // estimate
  std::string shell;               // completion
  std::string from, to;            // import_model, export_model: folders
  GenerateCall generate;           // generate only; `settings` is then not read
  PlanCall plan;
  QualifyCall qualify;
  ModelCall model;     // fits, techniques
  bool pairs = false;  // techniques: predict each pair instead of listing the rows

  // True for commands that run a model with `settings`.
  bool computes() const { return !print_config && (command == Command::train || command == Command::eval); }
};

// Reads the command line. None if --help or --version was requested and has been printed. Throws UserError,
// with the nearest name for unknown commands, options and settings.
std::optional<Arguments> parse_arguments(int argc, const char* const* argv);

// The text of `moelab --help`.
std::string program_help();

// The script that completes command lines in `shell` (bash, zsh).
std::string completion_script(const std::string& shell);

}  // namespace moelab
