#include "kernels/update/adam_mini.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "kernels/update/adam_rule.h"
#include "kernels/update/load_gradient.h"
#include "kernels/update/step_factors.h"
#include "kernels/update/stepped_weights.h"
#include "kernels/update/update_operator.h"

namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kGrain = 16384;

void check_tensors(const Tensor& master, const Tensor& gradient, const Tensor& m, const Tensor& v,
                   const MiniBlocks& b, const OptionalTensor& copy) {
  check_step("adam_mini", master, gradient, copy);
  check_state("adam_mini", "m", m, at::kFloat, master.numel());
  TORCH_CHECK(b.rows >= 1 && b.heads >= 0 && b.head_rows >= 0 && b.heads * b.head_rows <= b.rows &&
                  master.numel() % b.rows == 0,
              "adam_mini: ", b.heads, " heads of ", b.head_rows, " rows do not fit ", b.rows, " rows of ",
              master.numel(), " weights");
  check_state("adam_mini", "v", v, at::kFloat, b.count());
}

// Sum of g^2, in a fixed order whatever the number of threads.
template <class Gradient>
double sum_of_squares(const Gradient* gradient, int64_t n, float scale) {
  constexpr int64_t kChunk = 4096;  // summed in fp32
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    Vec part(0);
    for_each_vector(std::min(kChunk, n - begin), [&](int64_t i, int64_t count) {
      const Vec g = load_gradient(gradient + begin + i, count, scale);
      part = at::vec::fmadd(g, g, part);
    });
    sum += horizontal_sum(part);
  }
  return sum;
}

// Updates one block: first its mean g^2, then every weight with the block's one denominator.
template <class Gradient>
void update_block(const SteppedWeights& weights, const Gradient* gradient, float* m, float& v, int64_t first,
                  int64_t n, const AdamWFactors& f) {
  const double mean = sum_of_squares(gradient + first, n, f.gradient_scale) / static_cast<double>(n);
  v = f.beta2 * v + f.rest2 * static_cast<float>(mean);
  const Vec size(f.step_size / (std::sqrt(v) * f.inverse_root + f.eps));
  for_each_vector(n, [&](int64_t offset, int64_t count) {
    const int64_t i = first + offset;
    const Vec g = load_gradient(gradient + i, count, f.gradient_scale);
    const Vec new_m = at::vec::fmadd(load_float(m + i, count), Vec(f.beta1), g * Vec(f.rest1));
    const Vec weight = at::vec::fmsub(weights.load(i, count), Vec(f.keep), size * new_m);
    store_float(m + i, new_m, count);
    weights.store(i, weight, count);
  });
}

template <class Gradient>
void step_cpu(const Tensor& master, const Tensor& gradient, const Tensor& m, const Tensor& v,
              const MiniBlocks& blocks, const OptionalTensor& copy, const OptimizerStep& step) {
  const SteppedWeights weights(master, copy, step);
  const AdamWFactors f = adamw_factors(step);
  float *pm = m.data_ptr<float>(), *pv = v.data_ptr<float>();
  const Gradient* pg = gradient.data_ptr<Gradient>();
  const int64_t width = master.numel() / blocks.rows, split = blocks.heads * blocks.head_rows;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
  at::parallel_for(0, blocks.count(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const bool head = b < blocks.heads;
      const int64_t row = head ? b * blocks.head_rows : split + b - blocks.heads;
      const int64_t i = row * width, n = (head ? blocks.head_rows : 1) * width;
      update_block(weights, pg, pm, pv[b], i, n, f);
    }
  });
}

MiniBlocks blocks_of(const UpdateTensors& t) { return {t.blocks.at(0), t.blocks.at(1), t.blocks.at(2)}; }

struct AdamMini {
  static constexpr const char* name = "adam_mini_";
  static void check(const UpdateTensors& t) {
    check_tensors(t.weights, t.gradient, t.state.at(0), t.state.at(1), blocks_of(t), t.compute_copy);
  }
  static void on_cpu(const UpdateTensors& t, const OptimizerStep& step) {
    with_element_type(t.gradient.scalar_type(), [&](auto g) {
      step_cpu<decltype(g)>(t.weights, t.gradient, t.state[0], t.state[1], blocks_of(t), t.compute_copy,
                            step);
    });
  }
};

}  // namespace

void adam_mini_(const Tensor& master, const Tensor& gradient, const Tensor& m, const Tensor& v,
                const MiniBlocks& b, const OptionalTensor& compute_copy, const OptimizerStep& step) {
  const Tensor state[] = {m, v};
  call_update_rule<AdamMini>({master, gradient, state, compute_copy, {b.rows, b.heads, b.head_rows}}, step);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) { register_update_rule<AdamMini>(m); }

}  // namespace moelab
