#pragma once
#include <ATen/ATen.h>

// What the embedding's CPU, CUDA and Meta sides share.
namespace moelab::embedding_detail {

inline at::Tensor empty_output(const at::Tensor& weight, const at::Tensor& tokens) {
  auto shape = tokens.sizes().vec();
  shape.push_back(weight.size(1));
  return at::empty(shape, weight.options());
}

// ATen's CUDA side sorts the ids too and sums in fp32; but up to this many tokens it adds to the result in
// place, in the result's type.
inline constexpr int64_t kAddedInPlace = 3072;

}  // namespace moelab::embedding_detail
