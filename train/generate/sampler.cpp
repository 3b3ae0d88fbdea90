#include "train/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "moe/settings/error.h"

namespace moelab {
namespace {

std::mt19937_64 generator(uint64_t seed, uint64_t stream) {
  constexpr uint64_t low = 0xffffffff;
  std::seed_seq words{seed & low, seed >> 32, stream & low, stream >> 32};
  return std::mt19937_64(words);
}

// In [0, 1), from the 53 highest bits: std::uniform_real_distribution differs between libraries.
double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

constexpr auto likelier = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
};

}  // namespace

void check_sampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    throw UserError("temperature: expected a number of at least 0, 0 for the likeliest token");
  }
  if (options.top_k < 0) throw UserError("top-k: expected a number of tokens, 0 for all");
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    throw UserError("top-p: expected a probability above 0, at most 1 (1 for all tokens)");
  }
}

Sampler::Sampler(const SamplingOptions& options)
    : options_(options), random_(generator(options.seed, options.stream)) {
  check_sampling(options);
}

int64_t Sampler::operator()(std::span<const float> logits) {
  candidates_.clear();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  bool usable = true;
  for (const float logit : logits) {
    usable = usable && logit < infinity;
    candidates_.push_back({logit, static_cast<int64_t>(candidates_.size())});
  }
  const Candidate best = *std::min_element(candidates_.begin(), candidates_.end(), likelier);
  if (!usable || best.logit == -infinity) {
    throw UserError("the model's logits are not finite; take a checkpoint from before its training diverged");
  }
  if (options_.temperature == 0) return best.id;
  highest_ = best.logit;
  keep_top_k();
  double left = uniform(random_) * keep_top_p();
  for (const Candidate& candidate : candidates_) {
    left -= weight(candidate);
    if (left < 0) return candidate.id;
  }
  return best.id;  // reached when rounding leaves a remainder
}

void Sampler::keep_top_k() {
  const auto k = static_cast<size_t>(options_.top_k);
  if (k == 0 || k >= candidates_.size()) return;
  std::partial_sort(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(), likelier);
  candidates_.resize(k);
}

// Returns the sum of the remaining weights.
double Sampler::keep_top_p() {
  double all = 0;
  for (const Candidate& candidate : candidates_) all += weight(candidate);
  if (options_.top_p == 1) return all;
  std::sort(candidates_.begin(), candidates_.end(), likelier);
  double kept = 0;
  size_t count = 0;
  while (count < candidates_.size() && kept < options_.top_p * all) kept += weight(candidates_[count++]);
  candidates_.resize(count);
  return kept;
}

// Proportional to the probability; 1 for the likeliest.
double Sampler::weight(const Candidate& candidate) const {
  return std::exp((static_cast<double>(candidate.logit) - highest_) / options_.temperature);
}

}  // namespace moelab
