#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "moe/tensor_part.h"

namespace moelab {

// One trained tensor.
struct Parameter {
  std::string name;
  at::Tensor value;        // the leaf that the model computes with, fp32, bf16 or fp16
  at::Tensor master;       // fp32: `value` itself, or the values that a 16-bit `value` is rounded from
  at::Tensor accumulated;  // fp32 gradient summed over micro-batches; undefined: value.grad() holds it
  bool decays = false;     // weight decay applies: a matrix, not a norm or bias
  bool expert = false;
  int64_t heads = 0;      // number of query and key heads in its first rows
  int64_t head_rows = 0;  // rows of each of those heads
  bool hidden = false;    // a block's matrix between hidden states: neither embedding, head nor router
  // What `value` is of a weight that lies on several ranks; none: all of it.
  std::optional<TensorPart> part = {};
  // A weight of experts, where data-parallel ranks have different experts: TokenExchange brings its gradient.
  bool exchanged = false;

  // Whether ranks of the tensor axis have other slices of the weight.
  bool sliced() const { return part && !part->slice.whole(); }

  // The gradient to step with; undefined when there is none.
  const at::Tensor& gradient() const { return accumulated.defined() ? accumulated : value.grad(); }
  // Whether `value` is rounded from another tensor.
  bool has_master_copy() const { return master.defined() && !master.is_same(value); }
};

}  // namespace moelab
