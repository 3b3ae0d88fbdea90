#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

// The order in which a run sees its data, as a pure function of a sample's number. No state is kept between
// calls, so a run that is resumed, or split over other micro-batches or ranks, sees the same samples.
namespace moelab {

// A bijection of [0, size) selected by a key: a Feistel network over the next power of four, iterated until
// the value is inside [0, size) again (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t key);   // size >= 1, at most 2^62
  uint64_t operator()(uint64_t index) const;  // index < size

 private:
  uint64_t scramble(uint64_t value) const;

  uint64_t size_, key_;
  int half_bits_ = 1;
};

// Deals turns to sources in proportion to their weights, as evenly as possible: after n turns each source has
// had its share of n to within one turn per source. A source's number of turns is known without counting.
class Mixture {
 public:
  struct Turn {
    size_t source;
    int64_t number;  // number of this source's earlier turns
  };

  explicit Mixture(const std::vector<double>& weights);  // each > 0; throws std::invalid_argument
  Turn at(int64_t n) const;
  // Turns of each source among the first n.
  std::vector<int64_t> counts(int64_t n) const;

 private:
  // Source i's share of the turns that earlier sources left over, in units of 2^-32.
  std::vector<uint64_t> share_;
};

struct Sample {
  size_t source;
  int64_t window;  // index within that source
};

// Shuffled windows: Mixture picks the source; each source gives each window once per epoch, in a new order
// every epoch.
class SampleOrder {
 public:
  // windows[i] >= 1 is the number of windows of source i.
  SampleOrder(const std::vector<double>& weights, std::vector<int64_t> windows, int64_t seed);
  Sample at(int64_t n) const;

 private:
  Mixture mixture_;
  std::vector<int64_t> windows_;
  uint64_t seed_;
};

}  // namespace moelab
