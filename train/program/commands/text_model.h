#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "moe/kv_cache.h"
#include "moe/transformer.h"
#include "train/checkpoint/checkpoint.h"
#include "train/data/tokenizer/tokenizer.h"
#include "train/generate/generate.h"
#include "train/program/commands/commands.h"
#include "train/settings/settings.h"

namespace moelab {

// A checkpoint's model, settings and tokenizer, to write texts with.
class TextModel {
 public:
  // Loads all but the model. Throws UserError.
  explicit TextModel(const GenerateCall& call);
  // Makes the model, and a cache for texts of so many positions.
  void open(int64_t positions);

  // Continues `prompt`, and prints the text as it is written. `stream`: which of the call's random numbers.
  Generated write(std::span<const int64_t> prompt, uint64_t stream);

  const Settings& settings() const { return settings_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const LoadedCheckpoint& checkpoint() const { return checkpoint_; }
  int64_t cache_bytes() const;

 private:
  const GenerateCall& call_;
  LoadedCheckpoint checkpoint_;
  Settings settings_;
  Tokenizer tokenizer_;
  std::optional<Transformer> model_;
  std::optional<KvCache> cache_;
  int64_t positions_ = 0;
};

// Prints the text and flushes. Throws UserError when standard output cannot take it.
void print_at_once(const std::string& text);

// What to say, and the exit code, when a command that writes texts runs out of memory.
int text_out_of_memory();

}  // namespace moelab
