#pragma once
#include <cstdint>

#include "train/settings/facts/data_parallel.h"
#include "train/settings/settings.h"

namespace moelab {

// What a rank in this stage of a resolved run's pipeline has and computes, as the settings of a run that only
// data-parallel ranks divide: the layers of its stage, and its slices of matrices (parallel.tensor).
// Embedding and head are still both there. Throws UserError if the model does not divide so.
Settings rank_share(const Settings& settings, int64_t stage);

// The ranks that have the same experts, as the data-parallel ranks of a run.
Settings replicas_of_experts(const Settings& settings);

// What a rank sends to those that have the same experts, for so many of its experts' weights. Ranks that take
// rows of other ranks have a gradient for the rows of each, and send all of them, unless they add first.
SentBytes sent_bytes_of_experts(const Settings& settings, double weights);

// What a rank sends to other ranks within the passes of one micro-batch, messages one after another, while it
// computes nothing. `share` is rank_share() of `settings`.
struct Exchange {
  double messages = 0, bytes = 0;

  friend Exchange operator*(double times, const Exchange& e) { return {times * e.messages, times * e.bytes}; }
  friend Exchange operator+(const Exchange& a, const Exchange& b) {
    return {a.messages + b.messages, a.bytes + b.bytes};
  }
};
struct PassExchanges {
  Exchange sum;  // over tensor-parallel ranks: one for the embedding, one for the head
  Exchange sums_forward, sums_backward;  // … of a block, on average of all
  Exchange rows_forward, rows_backward;  // between dispatch and experts of a block, likewise
  Exchange handed;                       // to the next stage, and in backward to the one before
};
PassExchanges pass_exchanges(const Settings& settings, const Settings& share);

}  // namespace moelab
