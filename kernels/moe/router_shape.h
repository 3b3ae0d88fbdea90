#pragma once
#include <cstdint>

#include "kernels/device/launch.h"

// Axes: T tokens (B sequences of S), E experts, K choices a token.
namespace moelab::cuda {

struct RouterShape {
  int64_t T, S, E, K;
  int64_t sequences() const { return T / S; }
};

// A warp chooses a token's experts; each of its lanes keeps the scores of up to 32 experts.
inline constexpr int64_t kMostExperts = 1024;

// Tokens of one sequence that one block of threads sums for the balance loss.
inline constexpr int64_t kBalanceChunk = 128;
inline int64_t balance_chunks(const RouterShape& s) { return s.sequences() * ceil_div(s.S, kBalanceChunk); }

// Doubles of scratch for router_forward: the sums of each chunk and of each sequence, and then, at half a
// double each, T sums of scores and B + 1 counters of what is done.
inline int64_t router_scratch(const RouterShape& s) {
  return balance_chunks(s) * (2 * s.E + 2) + 3 * s.sequences() + ceil_div(s.T + s.sequences() + 1, 2);
}

}  // namespace moelab::cuda
