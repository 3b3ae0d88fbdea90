#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace moelab {

// One trained tensor.
struct Parameter {
  std::string name;
  at::Tensor value;        // the leaf that the model computes with, fp32, bf16 or fp16
  at::Tensor master;       // fp32: `value` itself, or what a 16-bit `value` is the rounded copy of
  at::Tensor accumulated;  // fp32 gradient summed over micro-batches; undefined: value.grad() holds it
  bool decays = false;     // weight decay applies: a matrix, not a norm or bias
  bool expert = false;
  int64_t heads = 0;      // its first rows are so many query and key heads, …
  int64_t head_rows = 0;  // … of so many rows each
  bool hidden = false;    // a block's matrix between hidden states: neither embedding, head nor router

  // The gradient to step with; undefined when there is none.
  const at::Tensor& gradient() const { return accumulated.defined() ? accumulated : value.grad(); }
  // Whether `value` is rounded from another tensor.
  bool has_master_copy() const { return master.defined() && !master.is_same(value); }
};

}  // namespace moelab
