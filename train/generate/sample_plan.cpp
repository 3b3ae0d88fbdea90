#include "train/generate/sample_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "kernels/memory/report.h"
#include "moe/settings/error.h"
#include "moe/settings/rank_model.h"
#include "train/checkpoint/file_io.h"
#include "train/settings/convert.h"
#include "train/settings/facts/precision.h"
#include "train/settings/presets/parameter_count.h"
#include "train/step/compute_type.h"

namespace moelab {
namespace {

constexpr uint64_t kMaxPrompts = uint64_t{16} << 20;  // bytes

// The weights that a pass reads, on the device.
double weight_bytes(const Settings& s, const ModelSettings& own) {
  const double all = approximate_parameter_count(own), element = element_bytes(s);
  const double outside = static_cast<double>((own.tie_embeddings ? 1 : 2) * own.vocab * own.d_model);
  const bool gathered =
      s.placement.parameters != Home::device || weight_code(s.precision) || s.parallel.zero == 3;
  const auto layers = static_cast<double>(own.layers);
  const double blocks = (all - outside) * (gathered ? std::min(2.0, layers) / layers : 1);
  return element * (blocks + outside);
}

// Input, norm and sum; queries, keys, values and what attention makes of them; the rows of all experts of a
// token, before, inside and behind them; or the logits of as many texts, of which the sampler reads fp32.
double pass_bytes(const Settings& s, const ModelSettings& own, double tokens, double texts) {
  const auto D = static_cast<double>(own.d_model), F = static_cast<double>(own.d_expert);
  const double heads = static_cast<double>((2 * own.heads + 2 * own.kv()) * own.head());
  const double routes = own.dense() ? 1 : static_cast<double>(own.experts_per_token + own.shared_experts);
  const double block = tokens * (3 * D + heads + routes * (2 * D + 3 * F));
  const double logits = texts * static_cast<double>(own.vocab);
  return std::max(element_bytes(s) * block, (element_bytes(s) + 4) * logits);
}

[[noreturn]] void refuse_share(const Settings& s, int64_t share, int64_t reading, int64_t text) {
  const int64_t needed = reading + text;
  const double least = std::ceil(1e4 * double(needed) / double(s.memory.limit.count)) / 1e4;
  const std::string remedy = least <= 1 ? "the smallest that would do is sample.share=" + value_text(least)
                                        : "no share would do; lower train.sequence or raise memory.limit";
  throw UserError(fmt::format(
      "sample.share={} of memory.limit={} is {}; weights and a pass take {}, and the keys and values of one "
      "text of train.sequence={} tokens {}; {}",
      value_text(s.sample.share), value_text(s.memory.limit), human_bytes(share), human_bytes(reading),
      s.train.sequence, human_bytes(text), remedy));
}

}  // namespace

std::vector<std::string> sample_prompts(const Settings& settings) {
  const std::string& prompt = settings.sample.prompt;
  if (!prompt.starts_with('@')) return {prompt};
  std::vector<std::string> prompts;
  try {
    std::istringstream lines(read_text_file(prompt.substr(1), kMaxPrompts));
    for (std::string line; std::getline(lines, line);)
      if (line.find_first_not_of(" \t\r") != std::string::npos) prompts.push_back(line);
  } catch (const UserError& error) {
    throw UserError("sample.prompt=" + prompt + ": " + error.what());
  }
  if (prompts.empty())
    throw UserError("sample.prompt=" + prompt + ": there is no prompt in it; write one on each line");
  return prompts;
}

BatchLimits sample_limits(const Settings& s) {
  const auto prompts = static_cast<int64_t>(sample_prompts(s).size());
  int64_t texts = std::min({s.sample.max_sequences, s.sample.max_batched_tokens, prompts});
  if (s.memory.limit.count > 0) {
    const int64_t one = KvCache::bytes(rank_model(s.model, s.parallel.tensor), 1, s.train.sequence,
                                       compute_type(s.precision));
    const auto share = static_cast<int64_t>(s.sample.share * double(s.memory.limit.count));
    const int64_t reading = reading_bytes(s);
    if (share < reading + one) refuse_share(s, share, reading, one);
    texts = std::min(texts, (share - reading) / one);
  }
  return {texts, s.train.sequence, s.sample.max_batched_tokens};
}

int64_t reading_bytes(const Settings& s) {
  const ModelSettings own = rank_model(s.model, s.parallel.tensor);
  const auto tokens = static_cast<double>(s.sample.max_batched_tokens);
  const auto texts = static_cast<double>(std::min(s.sample.max_sequences, s.sample.max_batched_tokens));
  return static_cast<int64_t>(weight_bytes(s, own) + pass_bytes(s, own, tokens, texts));
}

void sample_dry(const Settings& settings, Transformer& model, BlockRunner& runner) {
  std::vector<std::vector<int64_t>> prompts;
  for (const std::string& text : sample_prompts(settings)) {
    const auto bytes = static_cast<int64_t>(text.size());
    prompts.emplace_back(std::clamp<int64_t>(bytes, 1, settings.train.sequence), 0);
  }
  generate_batch(model, runner, prompts, {}, sample_limits(settings));
}

}  // namespace moelab
