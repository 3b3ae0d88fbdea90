#include "kernels/update/adam8bit.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "kernels/formats/quantize.h"
#include "kernels/update/adam_rule.h"
#include "kernels/update/load_gradient.h"
#include "kernels/update/step_factors.h"
#include "kernels/update/stepped_weights.h"
#include "kernels/update/update_operator.h"

namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kGrainBlocks = 64;

void check_tensors(const Tensor& master, const Tensor& gradient, const Adam8bitState& s,
                   const OptionalTensor& copy) {
  const int64_t n = master.numel(), blocks = quant_blocks(n);
  check_step("adam8bit", master, gradient, copy);
  check_state("adam8bit", "m", s.m, at::kByte, n);
  check_state("adam8bit", "m_absmax", s.m_absmax, at::kFloat, blocks);
  check_state("adam8bit", "v", s.v, at::kByte, n);
  check_state("adam8bit", "v_absmax", s.v_absmax, at::kFloat, blocks);
}

// A block's elements in fp32.
using Block = std::array<float, kQuantBlock>;

// AdamW on one block; m and v hold its decoded moments.
template <class Gradient>
void update_block(const SteppedWeights& weights, const Gradient* gradient, Block& m, Block& v, int64_t first,
                  int64_t count, const AdamWFactors& f) {
  for_each_vector(count, [&](int64_t i, int64_t lanes) {
    const Vec g = load_gradient(gradient + first + i, lanes, f.gradient_scale),
              weight = weights.load(first + i, lanes);
    AdamVectors x{weight, load_float(&m[i], lanes), load_float(&v[i], lanes)};
    x.update(g, f);
    const Vec finite = (g - g) == Vec(0);
    store_float(&m[i], Vec::blendv(Vec(0), x.m, finite), lanes);
    store_float(&v[i], Vec::blendv(Vec(0), x.v, finite), lanes);
    weights.store(first + i, Vec::blendv(weight, x.weight, finite), lanes);
  });
}

template <class Gradient>
void step_cpu(const Tensor& master, const Tensor& gradient, const Adam8bitState& s,
              const OptionalTensor& copy, const OptimizerStep& step) {
  const SteppedWeights weights(master, copy, step);
  const AdamWFactors f = adamw_factors(step);
  auto *pm = s.m.data_ptr<uint8_t>(), *pv = s.v.data_ptr<uint8_t>();
  float *m_absmax = s.m_absmax.data_ptr<float>(), *v_absmax = s.v_absmax.data_ptr<float>();
  const Gradient* pg = gradient.data_ptr<Gradient>();
  const int64_t n = master.numel();
  at::parallel_for(0, quant_blocks(n), kGrainBlocks, [&](int64_t begin, int64_t end) {
    Block m, v;
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kQuantBlock, count = std::min(kQuantBlock, n - first);
      decode_block(BlockCode::dynamic_signed, pm + first, count, m_absmax[b], m.data());
      decode_block(BlockCode::dynamic_unsigned, pv + first, count, v_absmax[b], v.data());
      update_block(weights, pg, m, v, first, count, f);
      m_absmax[b] = encode_block(BlockCode::dynamic_signed, m.data(), count, pm + first);
      v_absmax[b] = encode_block(BlockCode::dynamic_unsigned, v.data(), count, pv + first);
    }
  });
}

Adam8bitState state_of(const UpdateTensors& t) {
  return {t.state.at(0), t.state.at(1), t.state.at(2), t.state.at(3)};
}

struct Adam8bit {
  static constexpr const char* name = "adam8bit_";
  static void check(const UpdateTensors& t) {
    check_tensors(t.weights, t.gradient, state_of(t), t.compute_copy);
  }
  static void on_cpu(const UpdateTensors& t, const OptimizerStep& step) {
    with_element_type(t.gradient.scalar_type(), [&](auto g) {
      step_cpu<decltype(g)>(t.weights, t.gradient, state_of(t), t.compute_copy, step);
    });
  }
};

}  // namespace

void adam8bit_(const Tensor& master, const Tensor& gradient, const Adam8bitState& s,
               const OptionalTensor& compute_copy, const OptimizerStep& step) {
  const Tensor state[] = {s.m, s.m_absmax, s.v, s.v_absmax};
  call_update_rule<Adam8bit>({master, gradient, state, compute_copy}, step);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) { register_update_rule<Adam8bit>(m); }

}  // namespace moelab
