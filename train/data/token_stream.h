#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
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

// Windows of `sequence` tokens; row n is sample n of SampleOrder. pinned: page-locked memory.
std::unique_ptr<const RowSource> window_rows(std::vector<Source> sources, int64_t sequence, int64_t seed,
                                             bool pinned = false);

// Threads that read ahead, which live as long as their stream, and the batches that each reads ahead.
struct ReadAhead {
  int64_t workers = 1;
  int64_t batches = 0;  // 0: batches are read when they are requested
};

// Training rows by optimizer step: row i of step s is row s * rows_per_step + i of the source. Any row can be
// read at any time, and neither the workers nor the split into micro-batches or ranks changes anything.
// Workers expect each step to be read like the previous one. Only one thread at a time may call read().
// Memory is allocated by that thread: workers make no CUDA calls, which could disturb a step being captured.
class TokenStream {
 public:
  // `stop`: asked by any thread before each row. Once it is true, read() may return a batch without tensors:
  // however slowly rows come, the reader and the workers leave after the row that is under way.
  TokenStream(std::unique_ptr<const RowSource> rows, int64_t rows_per_step, ReadAhead ahead,
              std::function<bool()> stop = {});
  // With window_rows and one worker. sequence, rows_per_step >= 1; prefetch >= 0 batches.
  TokenStream(Dataset data, int64_t sequence, int64_t rows_per_step, int64_t seed, int64_t prefetch);
  ~TokenStream();
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  // Rows [first, first + count) of optimizer step `step`, first + count <= rows_per_step. Throws UserError if
  // a shard became unreadable.
  Batch read(int64_t step, int64_t first, int64_t count);

  // Number of reads so far that prefetch had predicted.
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
  const int64_t rows_per_step_, prefetch_;  // prefetch_: batches of all workers together
  const std::function<bool()> asked_to_stop_;

  std::vector<Request> current_, previous_;  // reads of the current step so far, and of the whole step before
  int64_t foreseen_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Slot>> planned_;  // in the order of expected reads
  std::atomic<bool> stop_ = false;             // the stream ends
  std::vector<std::thread> workers_;
};

// Returns batch b of a run's held-out windows.
using ValidationBatches = std::function<Batch(int64_t b)>;

// Validation windows in a fixed shuffled order, each once, so that a few batches sample all documents.
// Sources contribute in proportion to their weights until one of them runs out. Batch b is always the same.
class ValidationStream {
 public:
  // sequence, rows >= 1.
  ValidationStream(Dataset data, int64_t sequence, int64_t rows);

  int64_t windows() const { return windows_; }
  int64_t batches() const { return (windows_ + rows_ - 1) / rows_; }
  // 0 <= batch < batches(). The last batch may have fewer than `rows` rows. Throws UserError if a shard
  // became unreadable.
  Batch read(int64_t batch) const;

 private:
  std::vector<Source> sources_;
  Mixture mixture_;
  int64_t sequence_, rows_, windows_;
};

}  // namespace moelab
