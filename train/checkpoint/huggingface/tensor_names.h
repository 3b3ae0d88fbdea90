#pragma once
#include <vector>

#include "train/checkpoint/huggingface/model_config.h"
#include "train/checkpoint/safetensors_file.h"

namespace moelab {

// The tensors of a Hugging Face file, each a view into one of `ours` (all of the model's parameters, of any
// type, row-major): reading into the views fills our tensors, and writing the views exports them. Queries,
// keys and values are rows of our qkv; an expert's gate and up are the halves of its part of w13. The names
// are those in files (one tensor per expert), the same in transformers 4 and 5.
std::vector<TensorEntry> hf_views(const std::vector<TensorEntry>& ours, HfFamily family,
                                  const ModelSettings& model);

}  // namespace moelab
