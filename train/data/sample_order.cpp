#include "train/data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace moelab {
namespace {

constexpr uint64_t kOne = uint64_t{1} << 32;

// Finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// floor(count * share / 2^32) without a 128-bit product.
int64_t take(int64_t count, uint64_t share) {
  const auto n = static_cast<uint64_t>(count);
  return static_cast<int64_t>((n >> 32) * share + (((n & (kOne - 1)) * share) >> 32));
}

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t key) : size_(size), key_(key) {
  if (size == 0 || size > uint64_t{1} << 62) throw std::invalid_argument("Permutation of an impossible size");
  while ((uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
}

uint64_t Permutation::scramble(uint64_t value) const {
  constexpr uint64_t kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t next = left ^ (mix(key_ ^ mix((right << 3) | round)) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

uint64_t Permutation::operator()(uint64_t index) const {
  do index = scramble(index);
  while (index >= size_);
  return index;
}

Mixture::Mixture(const std::vector<double>& weights) {
  double left = 0;
  for (const double weight : weights) {
    if (!std::isfinite(weight) || weight <= 0) throw std::invalid_argument("Mixture of a weight not above 0");
    left += weight;
  }
  if (weights.empty()) throw std::invalid_argument("Mixture of nothing");
  for (size_t i = 0; i + 1 < weights.size(); ++i) {
    const double share = std::round(weights[i] / left * static_cast<double>(kOne));
    share_.push_back(static_cast<uint64_t>(std::clamp(share, 1.0, static_cast<double>(kOne - 1))));
    left = std::max(left - weights[i], weights[i + 1]);  // rounding must not leave the rest without weight
  }
  share_.push_back(kOne);
}

// Source 0 takes turn n when floor((n + 1) share) exceeds floor(n share). The turns that it leaves are
// renumbered for source 1, and so on; the last source takes all that remain.
Mixture::Turn Mixture::at(int64_t n) const {
  size_t source = 0;
  for (; source + 1 < share_.size(); ++source) {
    const int64_t before = take(n, share_[source]);
    if (take(n + 1, share_[source]) > before) return {source, before};
    n -= before;
  }
  return {source, n};
}

std::vector<int64_t> Mixture::counts(int64_t n) const {
  std::vector<int64_t> result;
  for (const uint64_t share : share_) {
    result.push_back(take(n, share));
    n -= result.back();
  }
  return result;
}

SampleOrder::SampleOrder(const std::vector<double>& weights, std::vector<int64_t> windows, int64_t seed)
    : mixture_(weights), windows_(std::move(windows)), seed_(static_cast<uint64_t>(seed)) {
  const bool valid = std::ranges::all_of(windows_, [](int64_t count) { return count >= 1; });
  if (!valid || windows_.size() != weights.size())
    throw std::invalid_argument("SampleOrder of a source without windows");
}

Sample SampleOrder::at(int64_t n) const {
  const Mixture::Turn turn = mixture_.at(n);
  const int64_t windows = windows_[turn.source];
  const int64_t epoch = turn.number / windows;
  const uint64_t key = mix(mix(mix(seed_) + turn.source) + static_cast<uint64_t>(epoch));
  const Permutation order(static_cast<uint64_t>(windows), key);
  return {turn.source, static_cast<int64_t>(order(static_cast<uint64_t>(turn.number % windows)))};
}

}  // namespace moelab
