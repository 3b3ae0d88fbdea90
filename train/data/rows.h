#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

// B rows, S tokens of the sequence.
namespace moelab {

// As loaded: contiguous CPU tensors, charged to the host and not to the device's budget.
struct Batch {
  at::Tensor tokens;   // (B, S) int64
  at::Tensor targets;  // (B, S) int64, the token after each of `tokens`
  // Of rows that several documents share; else a row is one document and full.
  at::Tensor documents = {};  // (B, S) int32, as ForwardContext wants it; padding has -1 for its target
  int64_t filled = 0;         // tokens that are no padding
  double share = 0;           // of all of the step's such tokens
};

// The rows that a run trains on, without end. From several threads at once.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Memory for `count` rows, pinned where the source was asked to: to allocate it calls CUDA.
  virtual Batch allocate(int64_t count) const = 0;
  // Fills a batch of allocate() with the rows from `first` on, without a call of CUDA; `share` is not set.
  // Throws UserError if a shard became unreadable.
  virtual void fill(int64_t first, Batch& batch) const = 0;
  // Tokens of them that are no padding.
  virtual int64_t filled(int64_t first, int64_t count) const = 0;
};

}  // namespace moelab
