#include "kernels/adamw_compact.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/adam_rule.h"
#include "kernels/compact_format.h"
#include "kernels/load_gradient.h"
#include "kernels/op_handle.h"

#ifdef MOELAB_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/cuda/update_pointers.h"
#endif

namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kGrainChunks = 64;

void check(const Tensor& weights, const Tensor& gradient, const CompactState& s) {
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

// Elements in fp32 of several groups, so that their divisions and roots overlap.
constexpr int64_t kChunkGroups = 8;
using Chunk = std::array<float, kChunkGroups * kCompactGroup>;

// The number of elements of all groups but the last, a constant that the loops over them are compiled for.
// Each loop has pointers of its own: those of an object might change with what is stored through them.
using WholeGroup = std::integral_constant<int64_t, kCompactGroup>;

// f(group, elements in it) for the groups of `count` elements.
template <class F>
void for_each_group(int64_t count, const F& f) {
  const int64_t whole = count / kCompactGroup;
  for (int64_t group = 0; group < whole; ++group) f(group, WholeGroup());
  if (count > whole * kCompactGroup) f(whole, count - whole * kCompactGroup);
}

// Of a group, with zeros behind a short one.
float largest(const float* x) {
  Vec most(0);
  for_each_vector(kCompactGroup, [&](int64_t i, int64_t lanes) {
    most = at::vec::maximum(most, load_float(x + i, lanes).abs());
  });
  return at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); },
                                        most);
}

// Weights of either storage, with the correction of bf16 ones.
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

// Moments of all groups.
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
  // roots: of the second moments
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

// Of a chunk; leaves the second moments' roots in `v`.
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

void compact_cpu(Tensor weights, const Tensor& gradient, Tensor m, Tensor m_scale, Tensor v, Tensor v_scale,
                 OptionalTensor correction, at::ArrayRef<double> numbers, at::IntArrayRef counters,
                 const OptionalTensor& live) {
  check(weights, gradient, {m, m_scale, v, v_scale, correction});
  const auto step = step_now(numbers, counters, live);
  if (!step) return;
  const AdamWFactors f = adamw_factors(*step);
  const Moments moments{m.data_ptr<int8_t>(), m_scale.data_ptr<int16_t>(), v.data_ptr<uint8_t>(),
                        v_scale.data_ptr<int16_t>()};
  const int64_t n = weights.numel();
  const auto with_gradient = [&](const auto& w) {
    gradient.scalar_type() == at::kFloat ? step_cpu(w, gradient.data_ptr<float>(), moments, n, f)
                                         : step_cpu(w, gradient.data_ptr<at::BFloat16>(), moments, n, f);
  };
  if (correction) {
    with_gradient(Bf16Weights{weights.data_ptr<at::BFloat16>(), correction->data_ptr<int8_t>()});
  } else {
    with_gradient(Fp32Weights{weights.data_ptr<float>()});
  }
}

void compact_meta(Tensor weights, const Tensor& gradient, Tensor m, Tensor m_scale, Tensor v, Tensor v_scale,
                  OptionalTensor correction, at::ArrayRef<double>, at::IntArrayRef, const OptionalTensor&) {
  check(weights, gradient, {m, m_scale, v, v_scale, correction});
}

#ifdef MOELAB_WITH_CUDA
void compact_cuda(Tensor weights, const Tensor& gradient, Tensor m, Tensor m_scale, Tensor v, Tensor v_scale,
                  OptionalTensor correction, at::ArrayRef<double> numbers, at::IntArrayRef counters,
                  const OptionalTensor& live) {
  check(weights, gradient, {m, m_scale, v, v_scale, correction});
  const c10::cuda::CUDAGuard guard(weights.device());
  const OptimizerStep step = step_from(numbers, counters);
  const auto scales = [](const Tensor& t) { return reinterpret_cast<uint16_t*>(t.data_ptr<int16_t>()); };
  cuda::adamw_compact(weights.data_ptr(), correction ? correction->data_ptr<int8_t>() : nullptr,
                      cuda::gradient_pointer(gradient), m.data_ptr<int8_t>(), scales(m_scale),
                      v.data_ptr<uint8_t>(), scales(v_scale), weights.numel(), adamw_factors(step),
                      cuda::live_call(step, live), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
#endif

using Signature = void(Tensor, const Tensor&, Tensor, Tensor, Tensor, Tensor, OptionalTensor,
                       at::ArrayRef<double>, at::IntArrayRef, const OptionalTensor&);

}  // namespace

void adamw_compact_(const Tensor& weights, const Tensor& gradient, const CompactState& s,
                    const OptimizerStep& step) {
  static const auto op = operator_handle<Signature>("moelab::adamw_compact_");
  const at::AutoDispatchBelowADInplaceOrView guard;
  const StepArguments arguments(step);
  op.call(weights, gradient, s.m, s.m_scale, s.v, s.v_scale, s.correction, arguments.numbers,
          arguments.counters, arguments.live);
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

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def(
      "adamw_compact_(Tensor(a!) weights, Tensor gradient, Tensor(b!) m, Tensor(c!) m_scale, Tensor(d!) v, "
      "Tensor(e!) v_scale, Tensor(f!)? correction, float[] numbers, int[] counters, Tensor? live) -> ()");
}

TORCH_LIBRARY_IMPL(moelab, CPU, m) { m.impl("adamw_compact_", &compact_cpu); }

TORCH_LIBRARY_IMPL(moelab, Meta, m) { m.impl("adamw_compact_", &compact_meta); }

#ifdef MOELAB_WITH_CUDA
TORCH_LIBRARY_IMPL(moelab, CUDA, m) { m.impl("adamw_compact_", &compact_cuda); }
#endif

}  // namespace moelab
