#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "moe/communicator.h"
#include "moe/parameter.h"

namespace moelab {

// The ranks of a run, as one of them sees them. Data-parallel ranks take their shares of a step's
// micro-batches, and hold the whole model or, with parallel.zero, their parts of the state. With
// parallel.expert each holds some of the experts alone. With parallel.tensor, ranks that take the same
// micro-batches have a slice of each weight; data-parallel ranks are then those with the same slices. Each
// use has a communicator of its own, because the calls of one must come in the same order on all ranks. By
// default: one rank.
struct DataRanks {
  Communicator* gradients = &one_rank();
  Communicator* weights = &one_rank();  // gathered for a block's forward or backward pass
  Communicator* updates = &one_rank();  // parts that were stepped
  Communicator* control = &one_rank();  // of all ranks: what they decide together
  Communicator* reports = &one_rank();  // of data-parallel ranks: losses, routing, evaluations
  // Ranks that write a checkpoint together, for the stages of a save, which pass while training goes on.
  Communicator* checkpoint = &one_rank();
  // Ranks that have different experts, for the rows that these exchange; …
  Communicator* experts = &one_rank();
  // … and those that have the same, for the three uses above. Rank r * E + e of the data axis is the e-th of
  // E ranks along `experts` and the r-th along these.
  Communicator* expert_gradients = &one_rank();
  Communicator* expert_weights = &one_rank();
  Communicator* expert_updates = &one_rank();
  // Ranks that have other slices of the same weights, for the sums of their activations (moe/reducer.h).
  Communicator* tensor = &one_rank();

  // Among the data-parallel ranks.
  int64_t rank() const { return reports->rank(); }
  int64_t size() const { return reports->size(); }
  // Those that hold `parameter`, for its gradients.
  Communicator& gradients_of(const Parameter& parameter) const {
    return parameter.part ? *expert_gradients : *gradients;
  }
};

// Every rank's value, in rank order.
template <class T>
std::vector<T> of_all_ranks(Communicator& ranks, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(int64_t) == 0);
  using Words = std::array<int64_t, sizeof(T) / sizeof(int64_t)>;
  const std::vector<int64_t> all = ranks.agree(std::bit_cast<Words>(mine));
  std::vector<T> values;
  for (auto word = all.begin(); word != all.end(); word += std::tuple_size_v<Words>) {
    Words words;
    std::copy_n(word, words.size(), words.begin());
    values.push_back(std::bit_cast<T>(words));
  }
  return values;
}

// Whether it holds on one of the ranks at least.
inline bool on_any_rank(Communicator& ranks, bool holds) {
  for (const int64_t one : of_all_ranks<int64_t>(ranks, holds)) {
    if (one != 0) return true;
  }
  return false;
}

// Returns once all ranks have called it.
inline void wait_for_all(Communicator& ranks) { of_all_ranks<int64_t>(ranks, 0); }

// The first rank's text.
inline std::string of_first_rank(Communicator& ranks, const std::string& text) {
  const auto length = static_cast<size_t>(of_all_ranks<int64_t>(ranks, static_cast<int64_t>(text.size()))[0]);
  std::vector<int64_t> words((length + sizeof(int64_t) - 1) / sizeof(int64_t));
  if (ranks.rank() == 0) std::memcpy(words.data(), text.data(), length);
  if (length > 0) words = ranks.agree(words);
  return {reinterpret_cast<const char*>(words.data()), length};
}

}  // namespace moelab
