#pragma once
#include <string>
#include <vector>

#include "train/generate/batch.h"
#include "train/settings/settings.h"

namespace moelab {

// The prompts of sample.prompt: the text itself, or the lines of @FILE that are not blank. Throws UserError.
std::vector<std::string> sample_prompts(const Settings& settings);

// Limits for a run's samples. Texts at a time: as many as fit sample.share of memory.limit with their keys
// and values for train.sequence positions, beside what reading_bytes() says; but at most
// sample.max_sequences, sample.max_batched_tokens and the number of prompts. Without a memory limit,
// sample.share is ignored. Throws UserError as sample_prompts(), and when the share is too small for one
// text; the message gives the share that would do.
BatchLimits sample_limits(const Settings& settings);

// Device bytes that writing texts takes beside keys and values: the weights that it reads, two blocks' where
// these are gathered, and a bound for the tensors of a pass of sample.max_batched_tokens over one block or
// the head.
int64_t reading_bytes(const Settings& settings);

// The largest memory use of sampling, on the meta device: all keys and values, and the first pass over the
// prompts. Counts one token per byte of a prompt; no tokenizer makes more.
void sample_dry(const Settings& settings, Transformer& model, BlockRunner& runner);

}  // namespace moelab
