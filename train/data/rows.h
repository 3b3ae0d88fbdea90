#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

// B rows, S tokens of the sequence.
namespace moelab {

// A batch as loaded: contiguous CPU tensors, charged to the host instead of the device's budget.
struct Batch {
  at::Tensor tokens;   // (B, S) int64
  at::Tensor targets;  // (B, S) int64, the token after each of `tokens`
  // Only for rows shared by several documents; otherwise each row is one document and full.
  at::Tensor documents = {};  // (B, S) int32, as Documents expects; padding has target -1
  int64_t room = 0;           // document_room() of them
  int64_t filled = 0;         // tokens without padding
  double share = 0;           // `filled` as a fraction of the whole step's
};

// The endless rows that a run trains on. Thread-safe.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Memory for `count` rows; pinned if the source was asked to, which calls CUDA.
  virtual Batch allocate(int64_t count) const = 0;
  // Fills a batch from allocate() with the rows from `first` on; makes no CUDA calls and does not set
  // `share`. False: `stop`, asked before each row, was true, and rows are missing. Throws UserError if a
  // shard became unreadable.
  virtual bool fill(int64_t first, Batch& batch, const std::function<bool()>& stop) const = 0;
  // Tokens in rows [first, first + count), without padding.
  virtual int64_t filled(int64_t first, int64_t count) const = 0;
};

}  // namespace moelab
