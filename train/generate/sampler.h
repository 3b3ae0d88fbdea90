#pragma once
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace moelab {

struct SamplingOptions {
  double temperature = 0.8;  // divides the logits; 0: always the likeliest token
  int64_t top_k = 0;         // only the k likeliest; 0: all
  double top_p = 1;          // of these, the fewest likeliest that reach probability p (arXiv 1904.09751)
  uint64_t seed = 1;
  uint64_t stream = 0;  // each text of one seed has its own stream of random numbers
};

// Throws UserError for a temperature below 0, a negative top_k, or a top_p outside of (0, 1].
void check_sampling(const SamplingOptions& options);

// Draws token ids: divides logits by temperature, applies top_k, then top_p to the rest, and draws by
// probability. Of equal logits, the lower id counts as likelier. Probabilities are summed in double, and one
// draw uses one number of std::mt19937_64, so the same logits and options give the same ids on every machine
// with the same exp().
class Sampler {
 public:
  // Throws as check_sampling.
  explicit Sampler(const SamplingOptions& options);

  // Throws UserError when a logit is NaN or +inf, or all are -inf, as from a diverged model.
  int64_t operator()(std::span<const float> logits);

 private:
  struct Candidate {
    float logit;
    int64_t id;
  };
  void keep_top_k();
  double keep_top_p();
  double weight(const Candidate& candidate) const;

  SamplingOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;  // of the current draw
  float highest_ = 0;
};

}  // namespace moelab
