#pragma once
#include "kernels/vector/vec.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstring>
#include <optional>

#include "kernels/update/optimizer_step.h"
#include "kernels/update/stochastic.h"

namespace moelab {

// 32 random bits for each lane; `element` is the first lane's.
using RandomLanes = std::array<uint32_t, kLanes>;
inline RandomLanes random_lanes(uint64_t key, int64_t element) {
  RandomLanes bits;
#pragma omp simd
  for (int64_t i = 0; i < kLanes; ++i) bits[i] = random_bits(key, element + i);
  return bits;
}

// Stores the first `count` lanes of x, rounded stochastically with half (0 or 1) of each lane's random bits.
inline void store_stochastic(at::BFloat16* to, const Vec& x, int64_t count, const RandomLanes& random,
                             int half) {
  std::array<float, kLanes> values;
  store_float(values.data(), x);
  std::array<uint16_t, kLanes> rounded;
#pragma omp simd
  for (int64_t i = 0; i < kLanes; ++i) rounded[i] = stochastic_bf16(values[i], random[i] >> (16 * half));
  std::memcpy(to, rounded.data(), static_cast<size_t>(count) * sizeof *to);
}

// Weights as update rules read and write them, in fp32, however they are stored. Either fp32 weights, perhaps
// with the bf16 or fp16 copy that the model computes with (rounded to nearest), or bf16 weights alone,
// rounded stochastically: rounded to nearest, steps below half of a weight's last place would all be lost.
// The tensors must have passed check_step.
class SteppedWeights {
 public:
  SteppedWeights(const at::Tensor& weights, const std::optional<at::Tensor>& copy, const OptimizerStep& step)
      // moments rounded stochastically use the step's own key
      : key_(skip_elements(mix64(random_key(step.stream, step.step)), step.first_element)) {
    if (weights.scalar_type() == at::kFloat) {
      fp32_ = weights.data_ptr<float>();
      if (copy && copy->scalar_type() == at::kHalf) half_ = copy->data_ptr<at::Half>();
      if (copy && copy->scalar_type() == at::kBFloat16) set_bf16(*copy);
    } else {
      set_bf16(weights);
    }
  }

  Vec load(int64_t i, int64_t count) const {
    return fp32_ != nullptr ? load_float(fp32_ + i, count) : load_float(bf16_ + i, count);
  }

  void store(int64_t i, const Vec& weight, int64_t count) const {
    if (fp32_ == nullptr) return store_stochastic(bf16_ + i, weight, count, random_lanes(key_, i), 0);
    store_float(fp32_ + i, weight, count);
    if (bf16_ != nullptr) store_float(bf16_ + i, weight, count);
    if (half_ != nullptr) store_float(half_ + i, weight, count);
  }

 private:
  void set_bf16(const at::Tensor& t) { bf16_ = t.data_ptr<at::BFloat16>(); }

  float* fp32_ = nullptr;
  at::BFloat16* bf16_ = nullptr;
  at::Half* half_ = nullptr;
  uint64_t key_;
};

}  // namespace moelab
