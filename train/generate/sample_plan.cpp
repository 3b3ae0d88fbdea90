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
#include "train/step/compute_type.h"

namespace moelab {
namespace {

constexpr uint64_t kMaxPrompts = uint64_t{16} << 20;  // bytes

[[noreturn]] void refuse_share(const Settings& s, int64_t held, int64_t needed) {
  const double least = std::ceil(1e4 * double(needed) / double(s.memory.limit.count)) / 1e4;
  const std::string remedy = least <= 1 ? "the smallest that would do is sample.share=" + value_text(least)
                                        : "no share would do; lower train.sequence or raise memory.limit";
  throw UserError(fmt::format(
      "sample.share={} of memory.limit={} is {}, and the keys and values of one text of train.sequence={} "
      "tokens take {}; {}",
      value_text(s.sample.share), value_text(s.memory.limit), human_bytes(held), s.train.sequence,
      human_bytes(needed), remedy));
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
    const auto held = static_cast<int64_t>(s.sample.share * double(s.memory.limit.count));
    if (held < one) refuse_share(s, held, one);
    texts = std::min(texts, held / one);
  }
  return {texts, s.train.sequence, s.sample.max_batched_tokens};
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
