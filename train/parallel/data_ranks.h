#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "moe/communicator.h"
#include "moe/parameter.h"

namespace moelab {

// The ranks of a run, as one of them sees them. Data-parallel ranks take their shares of a step's
// micro-batches, and hold the whole model or, with parallel.zero, their parts of the state. With
// parallel.expert each holds some of the experts alone. With parallel.tensor, ranks that take the same
// micro-batches have a slice of each weight; data-parallel ranks are then those with the same slices. With
// parallel.pipeline, ranks have some of the layers each, and are data-parallel to those with the same. Each
// use has a communicator of its own, because the calls of one must come in the same order on all ranks. By
// default: one rank.
struct DataRanks {
  Communicator* gradients = &one_rank();
  Communicator* weights = &one_rank();   // gathered for a block's forward or backward pass
  Communicator* updates = &one_rank();   // parts that were stepped
  Communicator* control = &one_rank();   // of all ranks: what they decide together
  Communicator* reports = &one_rank();   // of data-parallel ranks: losses, routing, evaluations
  Communicator* of_stage = &one_rank();  // of all ranks with the same layers: norms
  // Ranks that write a checkpoint together, for the stages of a save, which pass while training goes on.
  Communicator* checkpoint = &one_rank();
  // Ranks that have different experts, for the rows that these exchange; …
  Communicator* experts = &one_rank();
  // … and those that have the same, for the three uses above. Rank r * E + e of the data axis is the e-th of
  // E ranks along `experts` and the r-th along these.
  Communicator* expert_gradients = &one_rank();
  Communicator* expert_weights = &one_rank();
  Communicator* expert_updates = &one_rank();
  // The stages of a pipeline, for what each hands the next, and for the gradients that it hands back.
  Communicator* stages = &one_rank();
  Communicator* stage_gradients = &one_rank();
  // Ranks that have other slices of the same weights, for the sums of their activations (moe/reducer.h).
  Communicator* tensor = &one_rank();

  // Among the data-parallel ranks.
  int64_t rank() const { return reports->rank(); }
  int64_t size() const { return reports->size(); }
  // Whether what all ranks of this stage hold alike is this rank's to save.
  bool first_of_stage() const { return rank() == 0 && tensor->rank() == 0; }
  // Those that hold `parameter`, for its gradients.
  Communicator& gradients_of(const Parameter& parameter) const {
    return parameter.exchanged ? *expert_gradients : *gradients;
  }
  // Whether no lower rank holds the same of `parameter`: this one counts it in sums over all ranks, and saves
  // it. `divided`: each data-parallel rank holds its part of the state.
  bool first_to_hold(const Parameter& parameter, bool divided) const {
    if (tensor->rank() > 0 && !parameter.sliced()) return false;
    return divided || gradients_of(parameter).rank() == 0;
  }
};

inline constexpr size_t kWord = sizeof(int64_t);  // ranks exchange values as these

// Every rank's value, in rank order.
template <class T>
std::vector<T> of_all_ranks(Communicator& ranks, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % kWord == 0);
  using Words = std::array<int64_t, sizeof(T) / kWord>;
  const std::vector<int64_t> all = ranks.agree(std::bit_cast<Words>(mine));
  std::vector<T> values;
  for (auto word = all.begin(); word != all.end(); word += std::tuple_size_v<Words>) {
    Words words;
    std::copy_n(word, words.size(), words.begin());
    values.push_back(std::bit_cast<T>(words));
  }
  return values;
}

// What each stage of the pipeline gives for the micro-batches of this rank, in the order of stages. All ranks
// call it, with equally many words.
inline std::vector<std::vector<int64_t>> of_all_stages(const DataRanks& ranks,
                                                       std::span<const int64_t> mine) {
  const int64_t in_stage = ranks.control->size() / ranks.stages->size(),
                place = ranks.control->rank() % in_stage;
  const std::vector<int64_t> all = ranks.control->agree(mine);
  std::vector<std::vector<int64_t>> words;
  for (int64_t rank = place; rank < ranks.control->size(); rank += in_stage) {
    const auto first = all.begin() + rank * static_cast<int64_t>(mine.size());
    words.emplace_back(first, first + static_cast<int64_t>(mine.size()));
  }
  return words;
}

// The sums of the stages' numbers: doubles or integers, equally many on all.
template <class T>
std::vector<T> sum_over_stages(const DataRanks& ranks, const std::vector<T>& mine) {
  static_assert(sizeof(T) == sizeof(int64_t));
  std::vector<int64_t> words;
  for (const T& one : mine) words.push_back(std::bit_cast<int64_t>(one));
  std::vector<T> sums(mine.size());
  for (const std::vector<int64_t>& stage : of_all_stages(ranks, words))
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += std::bit_cast<T>(stage[i]);
  return sums;
}

// The last stage's values, on all stages; as many as `mine`, which only the last one's need to be filled.
template <class T>
std::vector<T> of_last_stage(const DataRanks& ranks, std::vector<T> mine) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % kWord == 0);
  std::vector<int64_t> words(mine.size() * sizeof(T) / kWord);
  std::memcpy(words.data(), mine.data(), mine.size() * sizeof(T));
  const std::vector<int64_t> last = of_all_stages(ranks, words).back();
  std::memcpy(static_cast<void*>(mine.data()), last.data(), mine.size() * sizeof(T));
  return mine;
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
  if (length == 0) return {};
  std::vector<int64_t> words((length + sizeof(int64_t) - 1) / sizeof(int64_t));
  if (ranks.rank() == 0) std::memcpy(words.data(), text.data(), length);
  words = ranks.agree(words);
  return {reinterpret_cast<const char*>(words.data()), length};
}

}  // namespace moelab
