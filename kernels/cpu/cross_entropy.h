#pragma once
#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/cross_entropy.h"
#include "kernels/vec.h"

// Softmax cross entropy over the transposed logits of a chunk, one token a vector lane. Axes: R tokens of the
// chunk, V vocabulary.
namespace moelab::cpu {

constexpr int64_t kTokenBlock =
    128;  // tokens of one task: with a split of the vocabulary they stay in the L2 cache

// Every task covers fixed ranges of the vocabulary and of the tokens, and partial results are joined in
// order, so the number of threads changes nothing.
template <class T>
class CrossEntropyTask {
 public:
  explicit CrossEntropyTask(const CrossEntropyChunk& chunk)
      : c_(chunk), logits_(static_cast<T*>(chunk.logits)) {}

  void run() {
    for_tiles([this](int64_t part, int64_t token, int64_t count) { partial(part, token, count); });
    at::parallel_for(0, R_, 16, [this](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) join(token);
    });
    if (!c_.gradient) return;
    for_tiles([this](int64_t part, int64_t token, int64_t count) { write_gradient(part, token, count); });
    for (int64_t token = 0; token < R_; ++token) {
      if (c_.targets[token] != kIgnoredTarget)
        logits_[c_.targets[token] * R_ + token] = static_cast<T>(c_.token_target[token]);
    }
  }

 private:
  // f(part of the vocabulary, first token, tokens up to kLanes) over the whole chunk.
  template <class F>
  void for_tiles(const F& f) {
    const int64_t blocks = (R_ + kTokenBlock - 1) / kTokenBlock;
    at::parallel_for(0, parts_ * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % blocks * kTokenBlock;
        for_each_vector(std::min(kTokenBlock, R_ - first),
                        [&](int64_t column, int64_t count) { f(task / blocks, first + column, count); });
      }
    });
  }

  int64_t part_end(int64_t part) const { return std::min((part + 1) * kCrossEntropySplit, V_); }

  void partial(int64_t part, int64_t token, int64_t count) {
    const int64_t begin = part * kCrossEntropySplit, end = part_end(part);
    Vec top(-std::numeric_limits<float>::infinity());
    for (int64_t v = begin; v < end; ++v)
      top = at::vec::maximum(top, load_float(logits_ + v * R_ + token, count));
    Vec sum(0.0f);
    for (int64_t v = begin; v < end; ++v)
      sum = sum + (load_float(logits_ + v * R_ + token, count) - top).exp();
    store_float(c_.partial_max + part * R_ + token, top, count);
    store_float(c_.partial_sum + part * R_ + token, sum, count);
  }

  void join(int64_t token) {
    float top = c_.partial_max[token];
    for (int64_t part = 1; part < parts_; ++part) {
      const float other = c_.partial_max[part * R_ + token];
      if (!(other <= top)) top = other;  // a NaN stays
    }
    double sum = 0;
    for (int64_t part = 0; part < parts_; ++part) {
      sum += c_.partial_sum[part * R_ + token] * std::exp(double{c_.partial_max[part * R_ + token]} - top);
    }
    const bool ignored = c_.targets[token] == kIgnoredTarget;
    const double logit = ignored ? 0 : static_cast<float>(logits_[c_.targets[token] * R_ + token]);
    c_.row_loss[token] = ignored ? 0 : std::log(sum) + top - logit;
    c_.token_max[token] = top;
    c_.token_scale[token] = ignored ? 0 : static_cast<float>(gradient_factor_ / sum);
    c_.token_target[token] = static_cast<float>((std::exp(logit - top) / sum - 1) * gradient_factor_);
  }

  void write_gradient(int64_t part, int64_t token, int64_t count) {
    const Vec top = load_float(c_.token_max + token, count),
              scale = load_float(c_.token_scale + token, count);
    for (int64_t v = part * kCrossEntropySplit; v < part_end(part); ++v) {
      T* p = logits_ + v * R_ + token;
      store_float(p, (load_float(p, count) - top).exp() * scale, count);
    }
  }

  CrossEntropyChunk c_;
  T* logits_;  // (V, R)
  double gradient_factor_ = *c_.inverse_count * c_.gradient_scale;
  int64_t V_ = c_.vocabulary, R_ = c_.tokens, parts_ = (V_ + kCrossEntropySplit - 1) / kCrossEntropySplit;
};

inline void cross_entropy_chunk(const CrossEntropyChunk& chunk) {
  switch (chunk.element) {
    case cuda::Element::f32:
      return CrossEntropyTask<float>(chunk).run();
    case cuda::Element::bf16:
      return CrossEntropyTask<c10::BFloat16>(chunk).run();
    case cuda::Element::f16:
      return CrossEntropyTask<c10::Half>(chunk).run();
  }
}

}  // namespace moelab::cpu
