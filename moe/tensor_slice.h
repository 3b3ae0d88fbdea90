#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "moe/settings/model_settings.h"
#include "moe/tensor_part.h"

// Which slice of each weight a rank of the tensor axis has. Attention is split by key/value heads with the
// query heads that read them, feed-forward layers and experts by their hidden width F, the same part of gate
// and up. The products before (qkv, w13) are split by output rows, those after (attention_out, w2) by input
// columns. Embedding and head are split by the ids of the vocabulary. All other parameters are whole on every
// rank.
namespace moelab {

// The part of the parameter `name` (Transformer's names) that rank `rank` of `ranks` has.
TensorSlice tensor_slice(const ModelSettings& model, std::string_view name, int64_t rank, int64_t ranks);

// A copy of that slice, contiguous; `whole` itself without ranges.
at::Tensor cut(const at::Tensor& whole, const TensorSlice& slice);
// The `elements` elements of that part, flat. `whole` is contiguous.
at::Tensor cut(const at::Tensor& whole, const TensorPart& part, int64_t elements);

}  // namespace moelab
