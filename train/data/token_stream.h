#pragma once
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "train/data/dataset.h"
#include "train/data/rows.h"
#include "train/data/sample_order.h"

// B rows, S tokens of the sequence.
namespace moelab {

// Windows of `sequence` tokens, row n being sample n of SampleOrder. pinned: in page-locked memory.
std::unique_ptr<const RowSource> window_rows(std::vector<Source> sources, int64_t sequence, int64_t seed,
                                             bool pinned = false);

// Threads that live as long as their stream, and the batches that each of them reads ahead.
struct ReadAhead {
  int64_t workers = 1;
  int64_t batches = 0;  // 0: whoever asks for a batch reads it
};

// Training rows by optimizer step: row i of step s is row s * rows_per_step + i of the source, so that any
// row can be read at any time, and neither the workers nor how a step is cut into micro-batches or ranks
// changes anything. Workers expect each step to be read like the one before. One thread at a time may read.
// It allocates what the workers fill: they make no call of CUDA that could fall into a step that is being
// captured.
class TokenStream {
 public:
  TokenStream(std::unique_ptr<const RowSource> rows, int64_t rows_per_step, ReadAhead ahead);
  // Of window_rows, with one worker. sequence, rows_per_step >= 1, prefetch >= 0 batches.
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

  Batch load(const Request& request, Batch batch) const;
  Batch await(std::unique_lock<std::mutex>& lock, Slot& slot);
  void note(const Request& request);
  Request predict(const Request& last) const;
  void plan(Request last);
  std::shared_ptr<Slot> next_pending() const;
  void work();

  const std::unique_ptr<const RowSource> rows_;
  const int64_t rows_per_step_, prefetch_;  // batches of all workers

  std::vector<Request> current_, previous_;  // the reads of this step so far, and all of the step before
  int64_t foreseen_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Slot>> planned_;  // in the order in which they are expected
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

// Batch b of a run's held-out windows.
using ValidationBatches = std::function<Batch(int64_t b)>;

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
