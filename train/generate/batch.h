#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "train/generate/generate.h"

namespace moelab {

// What generating several texts at once may take.
struct BatchLimits {
  int64_t sequences = 1;       // texts under way; each has its keys and values
  int64_t positions = 1;       // that each has room for
  int64_t batched_tokens = 1;  // of one forward pass
};

// Continues each prompt as generate() does, `sequences` at a time, the others waiting for a place
// (TextScheduler); text i draws from options.sampling.stream + i. All keys and values are allocated before
// the first pass. Blocks run by `runner`. Returns the texts in the prompts' order, or none once `stop`
// (polled between passes) says so. A text's `steps` and seconds are those of the whole batch. Throws as
// generate(). On meta the first pass runs alone.
std::vector<Generated> generate_batch(Transformer& model, BlockRunner& runner,
                                      const std::vector<std::vector<int64_t>>& prompts,
                                      const GenerateOptions& options, const BatchLimits& limits,
                                      const std::function<bool()>& stop = {});

}  // namespace moelab
