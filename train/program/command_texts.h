#pragma once
#include <span>

#include "train/program/help.h"

namespace moelab {

enum class Command {
  train,
  eval,
  estimate,
  plan,
  fits,
  techniques,
  import_model,
  export_model,
  generate,
  chat,
  qualify,
  completion
};

// What help says of a command.
struct CommandText {
  Command command;
  const char *name, *about, *example;
  UsedSettings settings = "";
  const char* note = "";  // a paragraph above the example
};

std::span<const CommandText> command_texts();

}  // namespace moelab
