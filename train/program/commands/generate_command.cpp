#include <ATen/ATen.h>

#include <fmt/format.h>

#include <iostream>

#include "kernels/memory/report.h"
#include "moe/settings/error.h"
#include "train/program/commands/commands.h"
#include "train/program/commands/open_run.h"
#include "train/program/commands/text_model.h"
#include "train/step/compute_type.h"

namespace moelab {
namespace {

// The texts that a checkpoint's model writes after one prompt.
class TextRun {
 public:
  explicit TextRun(const GenerateCall& call)
      : call_(call),
        prompt_(call.prompt_file.empty() ? call.prompt : read_text(call.prompt_file)),
        text_(call),
        settings_(text_.settings()),
        ids_(text_.tokenizer().encode(prompt_)),
        positions_(needed_positions()) {
    text_.open(positions_);
  }

  void write_all() {
    for (int64_t sample = 0; sample < call_.samples; ++sample) {
      if (call_.samples > 1) std::cout << fmt::format("--- sample {} of {}\n", sample + 1, call_.samples);
      print_at_once(prompt_);
      report(text_.write(ids_, static_cast<uint64_t>(sample)));
    }
  }

 private:
  // Positions that the cache needs. The last token is written but never read.
  int64_t needed_positions() const {
    const auto prompt = static_cast<int64_t>(ids_.size());
    if (prompt == 0)
      throw UserError("the prompt is empty; give --prompt TEXT or --prompt-file FILE with text");
    if (prompt > settings_.train.sequence) {
      throw UserError(fmt::format(
          "the prompt has {} tokens, the model has learned train.sequence={} positions; shorten it, or "
          "add train.sequence={} for text of lower quality past them",
          prompt, settings_.train.sequence, prompt + call_.max_tokens));
    }
    return std::min(settings_.train.sequence, prompt + call_.max_tokens - 1);
  }

  void report(const Generated& g) const {
    const ModelSettings& m = settings_.model;
    const std::string speed =
        g.steps > 0 ? fmt::format("{:.1f} tokens/s after the first", double(g.steps) / g.step_seconds) : "";
    std::cerr << fmt::format(
        "{} tokens ({}){}{}; prompt of {} tokens in {:.3f} s; KV cache {} = 2 x {} layers x {} positions x "
        "{} heads x {} x {} bytes\n",
        g.tokens.size(), ending(g.ending), speed.empty() ? "" : ", ", speed, ids_.size(), g.prompt_seconds,
        human_bytes(text_.cache_bytes()), m.layers, positions_, m.kv(), m.head(),
        c10::elementSize(compute_type(settings_.precision)));
  }

  std::string ending(Ending ending) const {
    if (ending == Ending::end_of_text) return "the text ended";
    if (ending == Ending::max_tokens) return fmt::format("--max-tokens {}", call_.max_tokens);
    return fmt::format("train.sequence={} reached", settings_.train.sequence);
  }

  const GenerateCall& call_;
  std::string prompt_;
  TextModel text_;
  const Settings& settings_;
  std::vector<int64_t> ids_;
  int64_t positions_;  // capacity of the cache
};

}  // namespace

int generate_command(const GenerateCall& call) {
  check_sampling(call.sampling);
  try {
    TextRun(call).write_all();
  } catch (const c10::OutOfMemoryError&) {
    return text_out_of_memory();
  }
  return 0;
}

}  // namespace moelab
