#include "train/parallel/checked_communicator.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <array>
#include <string_view>

namespace moelab {

// A call in words: which, of what type, and for each rank how many elements go to it and come from it.
void CheckedCommunicator::check(Call call, c10::ScalarType type, std::span<const int64_t> to,
                                std::span<const int64_t> from) {
  const int64_t N = size();
  std::vector<int64_t> words{static_cast<int64_t>(call), static_cast<int64_t>(type)};
  words.insert(words.end(), to.begin(), to.end());
  words.resize(2 + N);  // a wrong number of counts is the inner one's to refuse
  words.insert(words.end(), from.begin(), from.end());
  words.resize(2 + 2 * N);
  const std::vector<int64_t> all = inner_.agree(words);
  const std::span mine(words);
  for (int64_t r = 0; r < N; ++r) {
    const std::span theirs = std::span(all).subspan(r * words.size(), words.size());
    const bool fits = theirs[0] == mine[0] && theirs[1] == mine[1] && theirs[2 + N + rank()] == mine[2 + r] &&
                      theirs[2 + rank()] == mine[2 + N + r];
    TORCH_CHECK(fits, name_, ": rank ", rank(), " calls ", text_of(mine), ", rank ", r, " calls ",
                text_of(theirs));
  }
}

std::string CheckedCommunicator::text_of(std::span<const int64_t> words) const {
  static constexpr std::array<std::string_view, 4> names = {"gather", "reduce", "exchange", "agree"};
  const auto counts = [&](int64_t first) {
    std::string text;
    for (int64_t r = 0; r < size(); ++r) text += (r > 0 ? ", " : "") + std::to_string(words[first + r]);
    return text;
  };
  return std::string(names.at(static_cast<size_t>(words[0]))) + " (" +
         c10::toString(static_cast<c10::ScalarType>(words[1])) + "; elements to each rank " + counts(2) +
         ", from each " + counts(2 + size()) + ")";
}

std::unique_ptr<Transfer> CheckedCommunicator::gather(const at::Tensor& part, const at::Tensor& whole,
                                                      std::span<const int64_t> counts) {
  check(Call::gather, part.scalar_type(), std::vector<int64_t>(size(), part.numel()), counts);
  return inner_.gather(part, whole, counts);
}

std::unique_ptr<Transfer> CheckedCommunicator::reduce(const at::Tensor& whole, const at::Tensor& sum,
                                                      std::span<const int64_t> counts) {
  check(Call::reduce, whole.scalar_type(), counts, std::vector<int64_t>(size(), sum.numel()));
  return inner_.reduce(whole, sum, counts);
}

std::unique_ptr<Transfer> CheckedCommunicator::exchange(const at::Tensor& sent, std::span<const int64_t> to,
                                                        const at::Tensor& received,
                                                        std::span<const int64_t> from) {
  check(Call::exchange, sent.scalar_type(), to, from);
  return inner_.exchange(sent, to, received, from);
}

std::vector<int64_t> CheckedCommunicator::agree(std::span<const int64_t> words) {
  const std::vector<int64_t> counts(size(), static_cast<int64_t>(words.size()));
  check(Call::agree, c10::kLong, counts, counts);
  return inner_.agree(words);
}

}  // namespace moelab
