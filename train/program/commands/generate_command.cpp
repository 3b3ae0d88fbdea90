#include <ATen/ATen.h>

#include <fmt/format.h>

#include <iostream>

#include "kernels/memory/report.h"
#include "moe/settings/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/data/tokenizer/tokenizer.h"
#include "train/generate/decode_step.h"
#include "train/generate/generate.h"
#include "train/predict/advice.h"
#include "train/program/commands/commands.h"
#include "train/program/commands/device_choice.h"
#include "train/program/commands/open_run.h"
#include "train/settings/load.h"
#include "train/step/compute_type.h"
#include "train/step/trainer.h"

namespace moelab {
namespace {

// A checkpoint's model, settings and tokenizer, and the texts that the model writes.
class TextRun {
 public:
  explicit TextRun(const GenerateCall& call)
      : call_(call),
        prompt_(call.prompt_file.empty() ? call.prompt : read_text(call.prompt_file)),
        checkpoint_(load_checkpoint_in(call.from)),
        settings_(on_chosen_device(load_settings(
            {.config = (checkpoint_.path / "config.yaml").string(), .overrides = call.overrides}))),
        tokenizer_(Tokenizer::load(checkpoint_.path)),
        ids_(tokenizer_.encode(prompt_)),
        positions_(needed_positions()),
        model_(settings_.model, settings_.attention,
               compute_options(settings_.precision, limited_device(settings_))),
        cache_(settings_.model, 1, positions_, compute(), model_.device()) {
    restore(checkpoint_.model, model_state(model_));
    round_masters(model_, settings_.precision);
    for (Parameter& parameter : model_.parameters()) parameter.master.reset();
  }

  void write_all() {
    for (int64_t sample = 0; sample < call_.samples; ++sample) {
      if (call_.samples > 1) std::cout << fmt::format("--- sample {} of {}\n", sample + 1, call_.samples);
      report(write(sample));
    }
  }

 private:
  // What is said of the device goes beside the text.
  static Settings on_chosen_device(Settings settings) {
    const ChosenDevice chosen = choose_device(settings.run.device);
    if (!chosen.note.empty()) std::cerr << chosen.note << "\n";
    return on_device(std::move(settings), chosen.device);
  }

  c10::ScalarType compute() const { return compute_type(settings_.precision); }

  // Positions that the cache needs. The last token is written but never read.
  int64_t needed_positions() const {
    const auto prompt = static_cast<int64_t>(ids_.size());
    if (prompt == 0)
      throw UserError("the prompt is empty; give --prompt TEXT or --prompt-file FILE with text");
    if (tokenizer_.vocab_size() > settings_.model.vocab) {
      throw UserError(fmt::format("{}: tokenizer.json has {} ids, the model only model.vocab={}",
                                  checkpoint_.path.string(), tokenizer_.vocab_size(), settings_.model.vocab));
    }
    if (prompt > settings_.train.sequence) {
      throw UserError(fmt::format(
          "the prompt has {} tokens, the model has learned train.sequence={} positions; shorten it, or "
          "add train.sequence={} for text of lower quality past them",
          prompt, settings_.train.sequence, prompt + call_.max_tokens));
    }
    return std::min(settings_.train.sequence, prompt + call_.max_tokens - 1);
  }

  Generated write(int64_t sample) {
    StreamingDecoder decoder(tokenizer_);
    GenerateOptions options{call_.sampling, call_.max_tokens, end_of_text(tokenizer_)};
    options.sampling.stream += static_cast<uint64_t>(sample);
    options.captured = captures_decode(settings_.memory.cuda_graphs) && DecodeStep::fits(model_);
    print(prompt_);
    Generated generated =
        generate(model_, cache_, ids_, options, [&](int64_t id) { print(decoder.push(id)); });
    print(decoder.finish() + "\n");
    return generated;
  }

  static void print(const std::string& text) {
    if (!(std::cout << text << std::flush)) throw UserError("cannot write to standard output");
  }

  void report(const Generated& g) const {
    const ModelSettings& m = settings_.model;
    const std::string speed =
        g.steps > 0 ? fmt::format("{:.1f} tokens/s after the first", double(g.steps) / g.step_seconds) : "";
    std::cerr << fmt::format(
        "{} tokens ({}){}{}; prompt of {} tokens in {:.3f} s; KV cache {} = 2 x {} layers x {} positions x "
        "{} "
        "heads x {} x {} bytes\n",
        g.tokens.size(), ending(g.ending), speed.empty() ? "" : ", ", speed, ids_.size(), g.prompt_seconds,
        human_bytes(KvCache::bytes(m, 1, positions_, compute())), m.layers, positions_, m.kv(), m.head(),
        c10::elementSize(compute()));
  }

  std::string ending(Ending ending) const {
    if (ending == Ending::end_of_text) return "the text ended";
    if (ending == Ending::max_tokens) return fmt::format("--max-tokens {}", call_.max_tokens);
    return fmt::format("train.sequence={} reached", settings_.train.sequence);
  }

  const GenerateCall& call_;
  std::string prompt_;
  LoadedCheckpoint checkpoint_;
  Settings settings_;
  Tokenizer tokenizer_;
  std::vector<int64_t> ids_;
  int64_t positions_;  // capacity of the cache
  Transformer model_;
  KvCache cache_;
};

}  // namespace

int generate_command(const GenerateCall& call) {
  check_sampling(call.sampling);
  try {
    TextRun(call).write_all();
  } catch (const c10::OutOfMemoryError&) {
    std::cerr
        << "\n"
        << refusal_message(cpu_ledger().refusal().value_or(Refusal{}), {})
        << "moelab: the memory budget does not hold the model and its text; give a shorter prompt, fewer "
           "--max-tokens, or a larger memory.limit\n";
    return 3;
  }
  return 0;
}

}  // namespace moelab
