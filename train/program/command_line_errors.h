#pragma once
#include <CLI/App.hpp>
#include <string>

#include "train/program/commands/commands.h"

// What is wrong with a command line, in one line. Each function throws UserError, or finds nothing wrong.
namespace moelab {

// "expected one of train, eval, …"
std::string one_of_commands();

// Words that `app` does not know, with the nearest name; a setting that is written as an option, with how it
// is written. `help`: the command that says what is known.
void refuse_unknown(const CLI::App& app, const std::string& help);

// --ranks, --machines, --link and --network that do not go together, and links that are not known.
void check_links(const PlanCall& call);

}  // namespace moelab
