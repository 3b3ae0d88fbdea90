#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "moe/kv_cache.h"
#include "moe/transformer.h"
#include "train/generate/sampler.h"

namespace moelab {

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 200;
  std::optional<int64_t> end_of_text;  // the token that ends a document; none: no text ends early
  // Generated tokens are read by a DecodeStep, which must fit the model; the prompt is read normally.
  bool captured = false;
};

enum class Ending {
  max_tokens,   // as many as asked for
  end_of_text,  // the model generated it; it is not among the tokens
  positions,    // the cache is full
};

struct Generated {
  std::vector<int64_t> tokens;
  Ending ending = Ending::max_tokens;
  double prompt_seconds = 0;  // until the logits of the first token
  int64_t steps = 0;          // forward passes of one token after that
  double step_seconds = 0;    // of all these passes, with sampling and on_token
};

// Throws UserError for a prompt that is empty or has more than `positions` tokens.
void check_prompt(std::span<const int64_t> prompt, int64_t positions);

// Continues `prompt` (at least one id) and passes each token to `on_token` as it is generated. The cache
// (batch 1) is cleared first. A cache of P positions suffices for a prompt of P tokens and one more token,
// since the last token is never read. If memory is too short for the whole prompt, it is read in pieces.
// Throws UserError for an empty prompt, one longer than the cache and bad options, and c10::OutOfMemoryError
// when memory does not suffice for one token.
Generated generate(Transformer& model, KvCache& cache, std::span<const int64_t> prompt,
                   const GenerateOptions& options, const std::function<void(int64_t)>& on_token = {});

}  // namespace moelab
