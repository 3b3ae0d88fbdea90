#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "moe/settings/model_settings.h"

// Which part of each weight a rank of the tensor axis has. Attention is split by key/value heads with the
// query heads that read them, feed-forward layers and experts by their hidden width F, the same part of gate
// and up. The products before (qkv, w13) are split by output rows, those after (attention_out, w2) by input
// columns. All other parameters are whole on every rank.
namespace moelab {

// Indices first, …, first + count - 1.
struct Range {
  int64_t first = 0, count = 0;
  bool operator==(const Range&) const = default;
};

// A part of a tensor: the ranges of its dimension `dim`, one behind another. No ranges: the whole tensor.
struct TensorSlice {
  int64_t dim = 0;
  std::vector<Range> ranges;
};

// The settings that block_forward takes on each of `ranks` ranks: 1/ranks of the heads and of d_expert, heads
// as wide as before. Throws UserError if key/value heads, query heads or d_expert do not divide, or with
// qk_norm=full, which would need sums over all heads.
ModelSettings rank_model(const ModelSettings& model, int64_t ranks);

// The part of the parameter `name` (Transformer's names) that rank `rank` of `ranks` has.
TensorSlice tensor_slice(const ModelSettings& model, std::string_view name, int64_t rank, int64_t ranks);

// A copy of that part, contiguous; `whole` itself without ranges.
at::Tensor cut(const at::Tensor& whole, const TensorSlice& slice);

}  // namespace moelab
