#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

// The order in which a run sees its data, as a pure function of a sample's number: nothing is kept between
// two calls, so a run that is resumed at a step, or split over other micro-batches or ranks, sees the same
// samples.
namespace moelab {

// A bijection of [0, size) chosen by a key: a Feistel network over the next power of four, walked until it
// lands inside [0, size) again (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t key);   // size >= 1, at most 2^62
  uint64_t operator()(uint64_t index) const;  // index < size

 private:
  uint64_t scramble(uint64_t value) const;

  uint64_t size_, key_;
  int half_bits_ = 1;
};

// Turns taken in proportion to weights, as evenly as they go: after n turns each source has had its share of
// n to within one turn a source, and how many turns it had is known without counting them.
class Mixture {
 public:
  struct Turn {
    size_t source;
    int64_t number;  // how many turns this source had before
  };

  explicit Mixture(const std::vector<double>& weights);  // each > 0; throws std::invalid_argument
  Turn at(int64_t n) const;
  // Turns of each source among the first n.
  std::vector<int64_t> counts(int64_t n) const;

 private:
  // What source i takes of the turns that the sources before it left over, in units of 2^-32.
  std::vector<uint64_t> share_;
};

struct Sample {
  size_t source;
  int64_t window;  // of that source
};

// Shuffled windows: the source by Mixture, in it each window once an epoch, in a fresh order every epoch.
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
