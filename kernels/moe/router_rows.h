#pragma once
#include "kernels/vector/vec.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/moe/router_rule.h"

// The router's arithmetic on the logits (E) of one token.
namespace moelab::router_detail {

inline float log_sum_exp(const float* logits, int64_t E) {
  Vec most(-std::numeric_limits<float>::infinity()), sum(0.0f);
  for_each_vector(E, [&](int64_t e, int64_t count) {
    most = Vec::set(most, at::vec::maximum(most, load_float(logits + e, count)), count);
  });
  const float top =
      at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); }, most);
  for_each_vector(E, [&](int64_t e, int64_t count) {
    sum = Vec::set(sum, sum + (load_float(logits + e, count) - Vec(top)).exp(), count);
  });
  return top + std::log(horizontal_sum(sum));
}

inline float dot(const float* a, const float* b, int64_t n) {
  Vec sum(0.0f);
  for_each_vector(
      n, [&](int64_t i, int64_t count) { sum = sum + load_float(a + i, count) * load_float(b + i, count); });
  return horizontal_sum(sum);
}

// Writes the scores and returns their sum (1 for softmax), by which the balance loss normalises them.
inline float scores_of_row(const float* logits, float lse, bool sigmoid, int64_t E, float* scores) {
  const Vec one(1.0f);
  Vec sum(0.0f);
  for_each_vector(E, [&](int64_t e, int64_t count) {
    const Vec logit = load_float(logits + e, count);
    const Vec score = sigmoid ? one / (one + logit.neg().exp()) : (logit - Vec(lse)).exp();
    sum = Vec::set(sum, sum + score, count);
    store_float(scores + e, score, count);
  });
  return sigmoid ? horizontal_sum(sum) : 1.0f;
}

// The K best experts, best first, with their scores. Ties: the lower expert. NaN counts as minus infinity.
inline void choose_best(const float* scores, int64_t E, int64_t K, float* best, int32_t* ids) {
  int64_t chosen = 0;
  const auto try_expert = [&](int64_t e) {
    const float score = std::isnan(scores[e]) ? -std::numeric_limits<float>::infinity() : scores[e];
    if (chosen == K && !(score > best[K - 1])) return;
    int64_t at = chosen < K ? chosen++ : K - 1;
    for (; at > 0 && score > best[at - 1]; --at) {
      best[at] = best[at - 1];
      ids[at] = ids[at - 1];
    }
    best[at] = score;
    ids[at] = static_cast<int32_t>(e);
  };
  for (int64_t e = 0; e < K; ++e) try_expert(e);
  for_each_vector(E - K, [&](int64_t e, int64_t count) {
    const Vec better = load_float(scores + K + e, count) > Vec(best[K - 1]);
    auto lanes = ~static_cast<uint32_t>(better.zero_mask()) & ((uint32_t{1} << count) - 1);
    for (; lanes != 0; lanes &= lanes - 1) try_expert(K + e + std::countr_zero(lanes));
  });
}

// Weights of the chosen experts: their scores, with `normalise` divided by their sum; 0 where no expert was
// chosen.
inline void weigh_choices(const float* scores, const int32_t* ids, bool normalise, int64_t K,
                          float* weights) {
  float sum = 0;
  for (int64_t k = 0; k < K; ++k) sum += weights[k] = ids[k] < 0 ? 0.0f : scores[ids[k]];
  for (int64_t k = 0; normalise && !(sum <= 0) && k < K; ++k) weights[k] /= sum;
}

// The gradient of one token's logits.
struct RowGradient {
  int64_t E, K;
  bool sigmoid, normalise;
  float balance_scale, z_scale;  // incoming gradients divided by the number of terms

  // `scores` is scratch of E.
  void operator()(const float* logits, float lse, const int32_t* ids, const float* dweights,
                  const float* fraction, float* scores, float* dlogits) const {
    const float sum = scores_of_row(logits, lse, sigmoid, E, scores);
    // balance: d/dscore of E/(B S) sum_e f_e score_e / sum
    const float mixed = dot(fraction, scores, E) / sum;
#pragma omp simd
    for (int64_t e = 0; e < E; ++e) {
      dlogits[e] = balance_scale * balance_gradient(fraction[e], mixed, sum, sigmoid);
    }
    add_choice_gradient(ids, dweights, scores, dlogits);
    // through the score
    const float inner = dot(scores, dlogits, E), z = z_scale * 2 * lse;
    const auto through = [&](int64_t e, bool is_sigmoid) {
      dlogits[e] = logit_gradient(logits[e], lse, scores[e], dlogits[e], inner, z, is_sigmoid);
    };
    if (sigmoid) {
      for (int64_t e = 0; e < E; ++e) through(e, true);
    } else {
#pragma omp simd
      for (int64_t e = 0; e < E; ++e) through(e, false);
    }
  }

  void add_choice_gradient(const int32_t* ids, const float* dweights, const float* scores,
                           float* dscores) const {
    float chosen = 0, along = 0;
    for (int64_t k = 0; k < K; ++k) {
      if (ids[k] < 0) continue;
      chosen += scores[ids[k]];
      along += dweights[k] * scores[ids[k]];
    }
    for (int64_t k = 0; k < K; ++k) {
      if (ids[k] >= 0) dscores[ids[k]] += choice_gradient(dweights[k], along, chosen, normalise);
    }
  }
};

}  // namespace moelab::router_detail
