#pragma once
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "train/data/dataset.h"
#include "train/data/sample_order.h"

// B rows, S tokens of the sequence.
namespace moelab {

// Contiguous CPU tensors, charged to the host and not to the device's budget.
struct Batch {
  at::Tensor tokens;   // (B, S) int64
  at::Tensor targets;  // (B, S) int64, the token after each of `tokens`
};

// Training rows in their shuffled order. Row i of optimizer step s is sample s * rows_per_step + i of
// SampleOrder, so that any row can be read at any time and how a step is cut into micro-batches or ranks
// changes nothing. With prefetch > 0 a thread reads ahead that many batches, expecting each step to be read
// like the one before. One thread at a time may read.
class TokenStream {
 public:
  // sequence, rows_per_step >= 1, prefetch >= 0 batches.
  TokenStream(Dataset data, int64_t sequence, int64_t rows_per_step, int64_t seed, int64_t prefetch);
  ~TokenStream();
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  // Rows [first, first + count) of optimizer step `step`, first + count <= rows_per_step. Throws UserError if
  // a shard became unreadable.
  Batch read(int64_t step, int64_t first, int64_t count);

  // Reads so far that prefetch had planned for.
  int64_t foreseen() const { return foreseen_; }

 private:
  struct Request {
    int64_t step, first, count;
    friend bool operator==(const Request&, const Request&) = default;
  };
  struct Slot;

  Batch load(const Request& request) const;
  Batch await(std::unique_lock<std::mutex>& lock, Slot& slot);
  void note(const Request& request);
  Request predict(const Request& last) const;
  void plan(Request last);
  std::shared_ptr<Slot> next_pending() const;
  void work();

  const std::vector<Source> sources_;
  const SampleOrder order_;
  const int64_t sequence_, rows_per_step_, prefetch_;

  std::vector<Request> current_, previous_;  // the reads of this step so far, and all of the step before
  int64_t foreseen_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Slot>> planned_;  // in the order in which they are expected
  bool stop_ = false;
  std::thread worker_;
};

// Validation windows in a fixed shuffled order, each once, so that a few batches sample all documents:
// sources in proportion to their weights until the first of them has no more. Batch b is always the same.
class ValidationStream {
 public:
  // sequence, rows >= 1.
  ValidationStream(Dataset data, int64_t sequence, int64_t rows);

  int64_t windows() const { return windows_; }
  int64_t batches() const { return (windows_ + rows_ - 1) / rows_; }
  // 0 <= batch < batches(). The last one may have fewer than `rows` rows. Throws UserError if a shard became
  // unreadable.
  Batch read(int64_t batch) const;

 private:
  std::vector<Source> sources_;
  Mixture mixture_;
  int64_t sequence_, rows_, windows_;
};

}  // namespace moelab
