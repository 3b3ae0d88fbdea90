#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "train/generate/generate.h"

namespace moelab {

// Limits for generating several texts at once.
struct BatchLimits {
  int64_t sequences = 1;       // texts at a time; each has its own keys and values
  int64_t positions = 1;       // positions in each text's cache
  int64_t batched_tokens = 1;  // tokens per forward pass
};

// Continues each prompt as generate() does, `sequences` at a time; the others wait (TextScheduler). Text i
// draws random numbers from options.sampling.stream + i. All keys and values are allocated before the first
// pass. `runner` runs the blocks. Returns the texts in the prompts' order, or none once `stop` (polled
// between passes) returns true. A text's `steps` and seconds are those of the whole batch. Throws as
// generate(). On meta only the first pass runs.
std::vector<Generated> generate_batch(Transformer& model, BlockRunner& runner,
                                      const std::vector<std::vector<int64_t>>& prompts,
                                      const GenerateOptions& options, const BatchLimits& limits,
                                      const std::function<bool()>& stop = {});

}  // namespace moelab
