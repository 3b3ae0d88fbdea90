#pragma once
#include <cmath>

#include "train/parallel/data_ranks.h"

namespace moelab {

// The loss of one held-out batch, and its tokens; 0 tokens: no batch was left for this rank.
struct BatchLoss {
  double loss = 0, tokens = 0;
};

// The mean loss of held-out batches, over their tokens. Each of the data-parallel ranks `ranks` evaluates
// another batch at a time, and all call it together.
class HeldOutMean {
 public:
  explicit HeldOutMean(Communicator& ranks) : ranks_(ranks) {}

  void add(const BatchLoss& own) {
    for (const BatchLoss& one : of_all_ranks(ranks_, own)) {
      sum_ += one.tokens * one.loss;
      tokens_ += one.tokens;
    }
  }
  double value() const { return tokens_ > 0 ? sum_ / tokens_ : std::nan(""); }

 private:
  Communicator& ranks_;
  double sum_ = 0, tokens_ = 0;
};

}  // namespace moelab
