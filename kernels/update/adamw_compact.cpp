#include "kernels/update/adamw_compact.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "kernels/formats/compact_format.h"
#include "kernels/update/adam_rule.h"
#include "kernels/update/load_gradient.h"
#include "kernels/update/step_factors.h"
#include "kernels/update/update_operator.h"

namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kGrainChunks = 64;

void check_tensors(const Tensor& weights, const Tensor& gradient, const CompactState& s) {
  const char* name = "adamw_compact";
  const int64_t n = weights.numel(), groups = quant_blocks(n, kCompactGroup);
  const bool bf16 = weights.scalar_type() == at::kBFloat16;
  check_state(name, "weights", weights, bf16 ? at::kBFloat16 : at::kFloat, n);
  check_state(name, "gradient", gradient, gradient.scalar_type() == at::kFloat ? at::kFloat : at::kBFloat16,
              n);
  TORCH_CHECK(s.correction.has_value() == bf16, "adamw_compact: bf16 weights have a correction, fp32 none");
  if (bf16) check_state(name, "correction", *s.correction, at::kChar, n);
  check_state(name, "m", s.m, at::kChar, n);
  check_state(name, "m_scale", s.m_scale, at::kShort, groups);
  check_state(name, "v", s.v, at::kByte, n);
  check_state(name, "v_scale", s.v_scale, at::kShort, groups);
}

// Elements of several groups in fp32: their divisions and roots overlap.
constexpr int64_t kChunkGroups = 8;
using Chunk = std::array<float, kChunkGroups * kCompactGroup>;

// The number of elements of every group but the last, as a constant that the loops over them are compiled
// for. Each loop has its own pointers, because the compiler assumes that stores through an object's pointers
// may change the object.
using WholeGroup = std::integral_constant<int64_t, kCompactGroup>;

// Calls f(group, elements in it) for the groups of `count` elements.
template <class F>
void for_each_group(int64_t count, const F& f) {
  const int64_t whole = count / kCompactGroup;
  for (int64_t group = 0; group < whole; ++group) f(group, WholeGroup());
  if (count > whole * kCompactGroup) f(whole, count - whole * kCompactGroup);
}

// Largest magnitude of a group; a short group is followed by zeros.
float largest(const float* x) {
  Vec most(0);
  for_each_vector(kCompactGroup, [&](int64_t i, int64_t lanes) {
    most = at::vec::maximum(most, load_float(x + i, lanes).abs());
  });
  return at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); },
                                        most);
}

// Weights in either storage: fp32, or bf16 with a correction.
struct Fp32Weights {
  float* value;

  void load(int64_t i, int64_t count, float* x) const { std::copy_n(value + i, count, x); }
  void store(int64_t i, int64_t count, const float* x) const { std::copy_n(x, count, value + i); }
};

struct Bf16Weights {
  at::BFloat16* value;
  int8_t* correction;

  void load(int64_t i, int64_t count, float* x) const {
    const at::BFloat16* rounded = value + i;
    const int8_t* rest = correction + i;
#pragma omp simd
    for (int64_t k = 0; k < count; ++k) x[k] = join_weight(rounded[k].x, rest[k]);
  }
  void store(int64_t i, int64_t count, const float* x) const {
    at::BFloat16* rounded = value + i;
    int8_t* rest = correction + i;
#pragma omp simd
    for (int64_t k = 0; k < count; ++k) {
      rounded[k].x = nearest_bf16(x[k]);
      rest[k] = weight_correction(x[k], rounded[k].x);
    }
  }
};

// The moments of all groups.
struct Moments {
  int8_t* m;
  int16_t* m_scale;
  uint8_t* v;
  int16_t* v_scale;

  template <class Count>
  void load(int64_t group, Count count, float* first, float* second) const {
    const float a = decode_scale(static_cast<uint16_t>(m_scale[group]));
    const float b = decode_scale(static_cast<uint16_t>(v_scale[group]));
    const int64_t i = group * kCompactGroup;
#pragma omp simd
    for (int64_t k = 0; k < count; ++k) {
      first[k] = decode_first(m[i + k]) * a;
      const float root = decode_second(v[i + k]) * b;
      second[k] = root * root;
    }
  }
  // roots: square roots of the second moments
  template <class Count>
  void store(int64_t group, Count count, const float* first, const float* roots) const {
    const uint16_t a = encode_scale(largest(first)), b = encode_scale(largest(roots));
    m_scale[group] = static_cast<int16_t>(a);
    v_scale[group] = static_cast<int16_t>(b);
    const float inverse_a = a == 0 ? 0 : 1 / decode_scale(a), inverse_b = b == 0 ? 0 : 1 / decode_scale(b);
    int8_t* m_codes = m + group * kCompactGroup;
    uint8_t* v_codes = v + group * kCompactGroup;
#pragma omp simd
    for (int64_t k = 0; k < count; ++k) {
      m_codes[k] = encode_first(bounded(first[k] * inverse_a, 1));
      v_codes[k] = encode_second(bounded(roots[k] * inverse_b, 1));
    }
  }
};

// Steps a chunk. On return `v` holds the square roots of the second moments, which is how they are stored.
template <class Gradient>
void update_chunk(float* weight, float* m, float* v, const Gradient* gradient, int64_t count,
                  const AdamWFactors& f) {
  for_each_vector(count, [&](int64_t i, int64_t lanes) {
    const Vec g = load_gradient(gradient + i, lanes, f.gradient_scale), old = load_float(weight + i, lanes);
    AdamVectors x{old, load_float(m + i, lanes), load_float(v + i, lanes)};
    x.update(g, f);
    const Vec finite = (g - g) == Vec(0);
    store_float(m + i, Vec::blendv(Vec(0), x.m, finite), lanes);
    store_float(v + i, Vec::blendv(Vec(0), x.v.sqrt(), finite), lanes);
    store_float(weight + i, Vec::blendv(old, x.weight, finite), lanes);
  });
}

template <class Weights, class Gradient>
void step_cpu(const Weights& weights, const Gradient* gradient, const Moments& moments, int64_t n,
              const AdamWFactors& f) {
  const int64_t groups = quant_blocks(n, kCompactGroup), chunks = quant_blocks(groups, kChunkGroups);
  at::parallel_for(0, chunks, kGrainChunks, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kChunkGroups, i = first * kCompactGroup;
      const int64_t count = std::min(kChunkGroups * kCompactGroup, n - i);
      Chunk weight, m{}, v{};
      weights.load(i, count, weight.data());
      for_each_group(count, [&](int64_t group, auto elements) {
        const int64_t k = group * kCompactGroup;
        moments.load(first + group, elements, &m[k], &v[k]);
      });
      update_chunk(weight.data(), m.data(), v.data(), gradient + i, count, f);
      for_each_group(count, [&](int64_t group, auto elements) {
        const int64_t k = group * kCompactGroup;
        moments.store(first + group, elements, &m[k], &v[k]);
      });
      weights.store(i, count, weight.data());
    }
  });
}

// For bf16 weights the correction comes after the moments.
CompactState state_of(const UpdateTensors& t) {
  return {t.state.at(0), t.state.at(1), t.state.at(2), t.state.at(3),
          t.state.size() > 4 ? std::optional(t.state[4]) : std::nullopt};
}

struct Compact {
  static constexpr const char* name = "adamw_compact_";
  static void check(const UpdateTensors& t) { check_tensors(t.weights, t.gradient, state_of(t)); }
  static void on_cpu(const UpdateTensors& t, const OptimizerStep& step) {
    const CompactState s = state_of(t);
    const AdamWFactors f = adamw_factors(step);
    const Moments moments{s.m.data_ptr<int8_t>(), s.m_scale.data_ptr<int16_t>(), s.v.data_ptr<uint8_t>(),
                          s.v_scale.data_ptr<int16_t>()};
    const int64_t n = t.weights.numel();
    const auto with_gradient = [&](const auto& w) {
      t.gradient.scalar_type() == at::kFloat
          ? step_cpu(w, t.gradient.data_ptr<float>(), moments, n, f)
          : step_cpu(w, t.gradient.data_ptr<at::BFloat16>(), moments, n, f);
    };
    if (s.correction) {
      with_gradient(Bf16Weights{t.weights.data_ptr<at::BFloat16>(), s.correction->data_ptr<int8_t>()});
    } else {
      with_gradient(Fp32Weights{t.weights.data_ptr<float>()});
    }
  }
};

}  // namespace

void adamw_compact_(const Tensor& weights, const Tensor& gradient, const CompactState& s,
                    const OptimizerStep& step) {
  std::vector<Tensor> state = {s.m, s.m_scale, s.v, s.v_scale};
  if (s.correction) state.push_back(*s.correction);
  call_update_rule<Compact>({weights, gradient, state, std::nullopt}, step);
}

Tensor joined_weights(const Tensor& bf16, const Tensor& correction) {
  const Tensor values = bf16.detach().cpu(), corrections = correction.cpu();
  const Tensor joined = at::empty(values.sizes(), at::kFloat);
  for (int64_t i = 0; i < joined.numel(); ++i) {
    joined.data_ptr<float>()[i] =
        join_weight(values.data_ptr<at::BFloat16>()[i].x, corrections.data_ptr<int8_t>()[i]);
  }
  return joined;
}

void split_weights_(const Tensor& fp32, const Tensor& bf16, const Tensor& correction) {
  const Tensor weights = fp32.detach().cpu().contiguous(), values = weights.to(at::kBFloat16);
  const Tensor corrections = at::empty(weights.sizes(), at::kChar);
  for (int64_t i = 0; i < weights.numel(); ++i) {
    corrections.data_ptr<int8_t>()[i] =
        weight_correction(weights.data_ptr<float>()[i], values.data_ptr<at::BFloat16>()[i].x);
  }
  bf16.detach().copy_(values);
  correction.copy_(corrections);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) { register_update_rule<Compact>(m); }

}  // namespace moelab
