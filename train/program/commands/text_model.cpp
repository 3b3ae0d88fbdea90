#include "train/program/commands/text_model.h"

#include <fmt/format.h>

#include <iostream>
#include <utility>

#include "kernels/memory/ledger.h"
#include "moe/settings/error.h"
#include "train/generate/decode_step.h"
#include "train/predict/advice.h"
#include "train/program/commands/device_choice.h"
#include "train/program/commands/open_run.h"
#include "train/program/qualify/kernel_choice.h"
#include "train/settings/load.h"
#include "train/step/compute_type.h"
#include "train/step/trainer.h"

namespace moelab {
namespace {

// What is said of the device goes beside the text.
Settings on_chosen_device(Settings settings) {
  const ChosenDevice chosen = choose_device(settings.run.device);
  if (!chosen.note.empty()) std::cerr << chosen.note << "\n";
  return on_device(std::move(settings), chosen.device);
}

}  // namespace

TextModel::TextModel(const GenerateCall& call)
    : call_(call),
      checkpoint_(load_checkpoint_in(call.from)),
      settings_(on_chosen_device(load_settings(
          {.config = (checkpoint_.path / "config.yaml").string(), .overrides = call.overrides}))),
      tokenizer_(Tokenizer::load(checkpoint_.path)) {
  if (tokenizer_.vocab_size() > settings_.model.vocab) {
    throw UserError(fmt::format("{}: tokenizer.json has {} ids, the model only model.vocab={}",
                                checkpoint_.path.string(), tokenizer_.vocab_size(), settings_.model.vocab));
  }
}

void TextModel::open(int64_t positions) {
  positions_ = positions;
  const c10::Device device = limited_device(settings_);
  if (const std::string kernels = take_kernels(settings_, device); !kernels.empty())
    std::cerr << kernels << "\n";
  model_.emplace(settings_.model, settings_.attention, compute_options(settings_.precision, device));
  cache_.emplace(settings_.model, 1, positions, compute_type(settings_.precision), model_->device());
  restore(checkpoint_.model, model_state(*model_));
  round_masters(*model_, settings_.precision);
  for (Parameter& parameter : model_->parameters()) parameter.master.reset();
}

Generated TextModel::write(std::span<const int64_t> prompt, uint64_t stream) {
  StreamingDecoder decoder(tokenizer_);
  GenerateOptions options{call_.sampling, call_.max_tokens, end_of_text(tokenizer_)};
  options.sampling.stream += stream;
  options.captured = captures_decode(settings_.memory.cuda_graphs) && DecodeStep::fits(*model_);
  Generated generated =
      generate(*model_, *cache_, prompt, options, [&](int64_t id) { print_at_once(decoder.push(id)); });
  print_at_once(decoder.finish() + "\n");
  return generated;
}

int64_t TextModel::cache_bytes() const {
  return KvCache::bytes(settings_.model, 1, positions_, compute_type(settings_.precision));
}

void print_at_once(const std::string& text) {
  if (!(std::cout << text << std::flush)) throw UserError("cannot write to standard output");
}

int text_out_of_memory() {
  std::cerr << "\n"
            << refusal_message(cpu_ledger().refusal().value_or(Refusal{}), {})
            << "moelab: the memory budget does not hold the model and its text; give a shorter prompt, fewer "
               "--max-tokens, or a larger memory.limit\n";
  return 3;
}

}  // namespace moelab
