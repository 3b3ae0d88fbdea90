#include "train/generate/run_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "moe/settings/error.h"
#include "train/generate/decode_step.h"
#include "train/generate/sample_plan.h"
#include "train/io/json_lines.h"
#include "train/io/terminal.h"

namespace moelab {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kTokens = 64;  // maximum per text

Tokenizer open_tokenizer(const Settings& settings, const Dataset& data) {
  if (!data.tokenizer) {
    throw UserError(
        "sample.every=" + std::to_string(settings.sample.every) +
        ": prompts need a tokenizer, and there is no tokenizer.json beside the shards of data.path; prepare "
        "the data anew or set sample.every=0");
  }
  return Tokenizer::load(*data.tokenizer);
}

std::string quoted_json(const Json& text) {
  return text.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

RunSamples::RunSamples(const Settings& settings, const Dataset& data)
    : settings_(settings), file_(std::filesystem::path(settings.run.dir) / "samples.jsonl") {
  if (settings.sample.every == 0) return;
  limits_ = sample_limits(settings);
  tokenizer_ = open_tokenizer(settings, data);
  if (tokenizer_->vocab_size() > settings.model.vocab) {
    throw UserError(fmt::format("{}: has {} ids, the model only model.vocab={}", data.tokenizer->string(),
                                tokenizer_->vocab_size(), settings.model.vocab));
  }
  prompts_ = sample_prompts(settings);
  for (const std::string& prompt : prompts_) {
    ids_.push_back(tokenizer_->encode(prompt));
    try {
      check_prompt(ids_.back(), limits_.positions);
    } catch (const UserError& error) {
      throw UserError("sample.prompt: " + quoted_json(prompt.substr(0, 40)) + ": " + error.what());
    }
  }
}

void RunSamples::go_on_after(int64_t step) const {
  if (!std::filesystem::exists(file_)) return;
  const std::string kept = step > 0 ? json_lines_up_to(file_, step) : "";
  if (!(std::ofstream(file_, std::ios::binary) << kept << std::flush))
    throw UserError("cannot write " + file_.string());
}

std::vector<SampleText> RunSamples::write(int64_t step, Transformer& model, BlockRunner& runner,
                                          const std::function<bool()>& stop) {
  GenerateOptions options;
  options.max_tokens = kTokens;
  options.captured = captures_decode(settings_.memory.cuda_graphs) && DecodeStep::fits(model);
  options.end_of_text = end_of_text(*tokenizer_);
  options.sampling.seed = static_cast<uint64_t>(settings_.train.seed);
  options.sampling.stream = static_cast<uint64_t>(step) * ids_.size();
  const std::vector<Generated> texts = generate_batch(model, runner, ids_, options, limits_, stop);
  return texts.empty() ? std::vector<SampleText>() : show(step, texts);
}

std::vector<SampleText> RunSamples::show(int64_t step, const std::vector<Generated>& texts) const {
  std::vector<SampleText> samples;
  int64_t tokens = 0;
  for (const Generated& text : texts) tokens += static_cast<int64_t>(text.tokens.size());
  const double rate = static_cast<double>(tokens) / texts[0].step_seconds;
  std::ofstream file(file_, std::ios::app | std::ios::binary);
  print_line(fmt::format("[Step {}] samples: {} tokens, {:.0f} tokens/s", step, tokens, rate));
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string written = tokenizer_->decode(texts[i].tokens);
    samples.push_back({prompts_[i], written});
    std::cout << "  " << quoted_json(prompts_[i]) << " -> " << quoted_json(written) << "\n";
    file << quoted_json({{"step", step},
                         {"prompt", prompts_[i]},
                         {"text", written},
                         {"tokens", texts[i].tokens.size()},
                         {"tokens_per_second", rate}})
         << "\n";
  }
  std::cout << std::flush;
  if (!file.flush()) throw UserError("cannot write " + file_.string() + ": is the disk full?");
  return samples;
}

bool RunSamples::halve() {
  if (limits_.sequences == 1) return false;
  limits_.sequences /= 2;
  limits_.batched_tokens = std::max(limits_.sequences, limits_.batched_tokens / 2);
  return true;
}

}  // namespace moelab
