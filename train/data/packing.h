#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "train/data/sample_order.h"

namespace moelab {

// Decides which passages share a row. Passages come in the order of SampleOrder. Groups of `buffer` passages
// are packed by best fit, longest first (Ding et al., arXiv 2404.10830), and their rows are shuffled. So row
// n is a function of the seed and n, and each passage comes once per epoch, shifted by at most a buffer.
// Nothing is cut.
class PackedOrder {
 public:
  struct Source {
    double weight = 1;             // by tokens, relative to the other sources
    std::vector<int64_t> lengths;  // tokens of each passage, 1 to `row`
  };

  // row: tokens per row. buffer >= 1: passages per buffer, at most all of them. Each source needs a passage.
  PackedOrder(std::vector<Source> sources, int64_t row, int64_t buffer, int64_t seed);

  struct Row {
    std::vector<Sample> passages;  // in order; `window` is the passage's number in its source
    int64_t filled = 0;            // tokens of all passages
  };
  // Row n >= 0. The first call for a row packs all buffers before it, about 0.2 us per passage. Thread-safe.
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

  mutable std::mutex mutex_;                                          // guards the members below
  mutable std::vector<int64_t> starts_{0};                            // the first row of each buffer
  mutable std::map<int64_t, std::shared_ptr<const Rows>> in_memory_;  // some packed buffers, by number
};

}  // namespace moelab
