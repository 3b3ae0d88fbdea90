#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "train/config/settings.h"
#include "train/run/commands.h"

namespace moelab {

enum class Command { train, eval, estimate, plan, fits, techniques, import_model, export_model, generate };

// One call of the program.
struct Arguments {
  Command command = Command::train;
  Settings settings;  // resolved and validated
  bool print_config = false;
  std::string resume;      // train: latest or a path; empty: start anew
  std::string checkpoint;  // eval: a path; empty: the newest of checkpoint.dir
  bool json = false;       // estimate, techniques
  int64_t ranks = 1;       // estimate
  std::string from, to;    // import_model, export_model: folders
  GenerateCall generate;   // generate: all of it; `settings` are then unread
  PlanCall plan;
  ModelCall model;     // fits, techniques
  bool pairs = false;  // techniques: predict them, not list the rows

  // A model runs as the settings say.
  bool computes() const { return !print_config && (command == Command::train || command == Command::eval); }
};

// Reads the command line. Nothing when --help or --version was asked for and has been printed. Throws
// UserError, with the nearest name for unknown commands, options and settings.
std::optional<Arguments> parse_arguments(int argc, const char* const* argv);

// The text of `moelab --help`.
std::string program_help();

}  // namespace moelab
