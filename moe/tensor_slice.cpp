#include "moe/tensor_slice.h"

#include <ATen/ATen.h>

#include <vector>

namespace moelab {
namespace {

// Rank `rank`'s part of `count` indices from `first` on.
Range part(int64_t first, int64_t count, int64_t rank, int64_t ranks) {
  return {first + rank * (count / ranks), count / ranks};
}

}  // namespace

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
  if (name == "embedding" || name == "head") return {0, {own(0, model.vocab)}};
  return {};
}

at::Tensor cut(const at::Tensor& whole, const TensorSlice& slice) {
  if (slice.whole()) return whole;
  std::vector<at::Tensor> parts;
  for (const Range& range : slice.ranges) parts.push_back(whole.narrow(slice.dim, range.first, range.count));
  return at::cat(parts, slice.dim);
}

at::Tensor cut(const at::Tensor& whole, const TensorPart& part, int64_t elements) {
  return cut(whole, part.slice).view(-1).narrow(0, part.first, elements);
}

}  // namespace moelab
