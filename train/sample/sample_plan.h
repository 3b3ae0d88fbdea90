#pragma once
#include <string>
#include <vector>

#include "train/config/settings.h"
#include "train/generate/batch.h"

namespace moelab {

// What sample.prompt stands for: the text itself, or the lines of @FILE that are not blank. Throws UserError.
std::vector<std::string> sample_prompts(const Settings& settings);

// How a run samples: as many texts at a time as sample.share of memory.limit has keys and values for, each
// with room for train.sequence positions, at most sample.max_sequences, and no more than there are prompts.
// What a pass of sample.max_batched_tokens takes comes on top. Without a limit there is nothing to share.
// Throws UserError as sample_prompts(), and, with the share that would do, when the share holds no text.
BatchLimits sample_limits(const Settings& settings);

// The most that sampling holds at a time: all keys and values, and the first pass of the prompts, taken for
// one token a byte; a tokenizer gives no more. For the meta device.
void sample_dry(const Settings& settings, Transformer& model, BlockRunner& runner);

}  // namespace moelab
