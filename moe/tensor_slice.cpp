#include "moe/tensor_slice.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "moe/settings/error.h"

namespace moelab {
namespace {

void check_divides(std::string_view key, int64_t value, int64_t ranks) {
  if (value % ranks == 0) return;
  throw UserError(fmt::format("{}={} does not divide over {} tensor-parallel ranks; try {} or {}", key, value,
                              ranks, std::max(ranks, value / ranks * ranks), (value / ranks + 1) * ranks));
}

// Rank `rank`'s part of `count` indices from `first` on.
Range part(int64_t first, int64_t count, int64_t rank, int64_t ranks) {
  return {first + rank * (count / ranks), count / ranks};
}

}  // namespace

ModelSettings rank_model(const ModelSettings& model, int64_t ranks) {
  check_divides("model.heads", model.heads, ranks);
  check_divides("model.kv_heads", model.kv(), ranks);
  check_divides("model.d_expert", model.d_expert, ranks);
  if (ranks > 1 && model.qk_norm == QkNorm::full) {
    throw UserError("model.qk_norm=full cannot be tensor-parallel: it is one norm over all heads; try head");
  }
  ModelSettings slice = model;
  slice.head_dim = model.head();
  slice.heads = model.heads / ranks;
  slice.kv_heads = model.kv() / ranks;
  slice.d_expert = model.d_expert / ranks;
  return slice;
}

TensorSlice tensor_slice(const ModelSettings& model, std::string_view name, int64_t rank, int64_t ranks) {
  const int64_t d = model.head(), queries = model.heads * d, keys = model.kv() * d;
  const bool expert = name.find(".experts.") != name.npos;
  const int64_t F =
      name.find(".shared.") != name.npos ? model.d_expert * model.shared_experts : model.d_expert;
  const auto own = [&](int64_t first, int64_t count) { return part(first, count, rank, ranks); };
  if (name.ends_with(".qkv")) {
    return {0, {own(0, queries), own(queries, keys), own(queries + keys, keys)}};
  }
  if (name.ends_with(".attention_out")) return {1, {own(0, queries)}};
  if (name.ends_with(".w13")) return {expert ? 1 : 0, {own(0, F), own(F, F)}};
  if (name.ends_with(".w2")) return {expert ? 2 : 1, {own(0, F)}};
  return {};
}

at::Tensor cut(const at::Tensor& whole, const TensorSlice& slice) {
  if (slice.ranges.empty()) return whole;
  std::vector<at::Tensor> parts;
  for (const Range& range : slice.ranges) parts.push_back(whole.narrow(slice.dim, range.first, range.count));
  return at::cat(parts, slice.dim);
}

}  // namespace moelab
