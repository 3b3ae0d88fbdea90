#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "train/data/sample_order.h"

namespace moelab {

// Which passages of documents share a row. Passages come in the order of SampleOrder; `buffer` of them at a
// time are packed by best fit, the longest first (Ding et al., arXiv 2404.10830), and their rows shuffled. So
// row n is a function of the seed and n, and a passage comes once an epoch give or take a buffer. Nothing is
// cut.
class PackedOrder {
 public:
  struct Source {
    double weight = 1;             // of its tokens, relative to the other sources'
    std::vector<int64_t> lengths;  // of its passages, tokens, 1 to `row` each
  };

  // row: tokens a row; buffer >= 1 passages, more than there are count as all of them. Each source has a
  // passage.
  PackedOrder(std::vector<Source> sources, int64_t row, int64_t buffer, int64_t seed);

  struct Row {
    std::vector<Sample> passages;  // one behind another; `window` is the passage's number in its source
    int64_t filled = 0;            // tokens of them all
  };
  // Row n >= 0. The first time that a row is asked for, all buffers before it are packed: about 0.2 us a
  // passage. From several threads at once.
  Row row(int64_t n) const;

  // Tokens in rows [first, first + count).
  int64_t filled(int64_t first, int64_t count) const;

 private:
  using Rows = std::vector<Row>;
  int64_t length(const Sample& passage) const { return sources_[passage.source].lengths[passage.window]; }
  Rows pack(int64_t buffer) const;
  std::shared_ptr<const Rows> packed(int64_t buffer) const;

  std::vector<Source> sources_;
  SampleOrder order_;
  int64_t row_, buffer_;
  uint64_t seed_;

  mutable std::mutex mutex_;                                          // guards what follows
  mutable std::vector<int64_t> starts_{0};                            // the first row of each buffer
  mutable std::map<int64_t, std::shared_ptr<const Rows>> in_memory_;  // the buffers asked for last, by number
};

}  // namespace moelab
