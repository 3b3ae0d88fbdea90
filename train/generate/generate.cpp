#include "train/generate/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "moe/settings/error.h"
#include "train/generate/decode_step.h"

namespace moelab {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Reads one growing text (batch 1).
class Reader {
 public:
  Reader(Transformer& model, KvCache& cache, bool captured) : model_(model), cache_(cache) {
    cache.truncate(0);
    if (captured) decode_.emplace(model, direct_, cache);
  }

  // Reads `ids` and returns the logits (1, V) fp32 of the next token, on the CPU.
  at::Tensor read(std::span<const int64_t> ids) {
    const at::Tensor tokens = at::tensor(at::ArrayRef<int64_t>(ids.data(), ids.size()), at::kLong);
    const at::Tensor logits = model_.next_logits(tokens.to(model_.device()).unsqueeze(0), cache_, direct_);
    return logits.to(at::kCPU, at::kFloat).contiguous();
  }

  // As read(), for a prompt: if a piece runs out of memory, goes on with pieces of half the size.
  at::Tensor read_prompt(std::span<const int64_t> ids) {
    at::Tensor logits;
    size_t piece = ids.size();
    for (size_t done = 0; done < ids.size();) {
      const size_t count = std::min(piece, ids.size() - done);
      try {
        logits = read(ids.subspan(done, count));
        done += count;
      } catch (const c10::OutOfMemoryError&) {
        if (count == 1) throw;
        cache_.truncate(static_cast<int64_t>(done));
        piece = (count + 1) / 2;
      }
    }
    return logits;
  }

  // As read(), for one token.
  at::Tensor read_next(int64_t id) {
    if (!decode_) return read({&id, 1});
    const at::Tensor logits = decode_->read({{id, cache_.length()}});
    cache_.grow(1);
    return logits;
  }

 private:
  Transformer& model_;
  KvCache& cache_;
  DirectRunner direct_;
  std::optional<DecodeStep> decode_;
};

}  // namespace

void check_prompt(std::span<const int64_t> prompt, int64_t positions) {
  if (prompt.empty()) throw UserError("the prompt is empty; give at least one token to continue");
  if (static_cast<int64_t>(prompt.size()) > positions) {
    throw UserError("the prompt has " + std::to_string(prompt.size()) + " tokens, more than the " +
                    std::to_string(positions) + " positions there is room for; shorten it");
  }
}

Generated generate(Transformer& model, KvCache& cache, std::span<const int64_t> prompt,
                   const GenerateOptions& options, const std::function<void(int64_t)>& on_token) {
  check_prompt(prompt, cache.positions());
  Sampler sampler(options.sampling);
  Reader reader(model, cache, options.captured);
  Generated result;
  auto start = Clock::now();
  at::Tensor logits = reader.read_prompt(prompt);
  result.prompt_seconds = seconds_since(start);
  start = Clock::now();
  while (static_cast<int64_t>(result.tokens.size()) < options.max_tokens) {
    if (!result.tokens.empty()) {
      if (cache.length() == cache.positions()) {
        result.ending = Ending::positions;
        break;
      }
      logits = reader.read_next(result.tokens.back());
      ++result.steps;
    }
    const int64_t id = sampler({logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())});
    if (id == options.end_of_text) {
      result.ending = Ending::end_of_text;
      break;
    }
    result.tokens.push_back(id);
    if (on_token) on_token(id);
  }
  result.step_seconds = seconds_since(start);
  return result;
}

}  // namespace moelab
