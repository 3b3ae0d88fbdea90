#include "kernels/update/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

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
                   const OptionalTensor& copy) {
  check_step("adamw", master, gradient, copy);
  const auto dtype = m.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
  check_state("adamw", "m", m, dtype, master.numel());
  check_state("adamw", "v", v, dtype, master.numel());
}

// Stores fp32 moments as they are and bf16 moments rounded stochastically: m with one half of the elements'
// random bits, v with the other half.
void store_moments(float* m, float* v, const AdamVectors& x, int64_t count, uint64_t, int64_t) {
  store_float(m, x.m, count);
  store_float(v, x.v, count);
}

void store_moments(at::BFloat16* m, at::BFloat16* v, const AdamVectors& x, int64_t count, uint64_t key,
                   int64_t element) {
  const RandomLanes random = random_lanes(key, element);
  store_stochastic(m, x.m, count, random, 0);
  store_stochastic(v, x.v, count, random, 1);
}

// One call's pointers, at its first element.
template <class Gradient, class Moment>
struct Pointers {
  SteppedWeights weights;
  const Gradient* gradient;
  Moment *m, *v;

  void update(int64_t i, int64_t count, const AdamWFactors& f, uint64_t key) const {
    AdamVectors x{weights.load(i, count), load_float(m + i, count), load_float(v + i, count)};
    x.update(load_gradient(gradient + i, count, f.gradient_scale), f);
    store_moments(m + i, v + i, x, count, key, i);
    weights.store(i, x.weight, count);
  }
};

template <class Gradient, class Moment>
void step_cpu(const Tensor& master, const Tensor& gradient, const Tensor& m, const Tensor& v,
              const OptionalTensor& copy, const OptimizerStep& step) {
  const Pointers<Gradient, Moment> all{SteppedWeights(master, copy, step), gradient.data_ptr<Gradient>(),
                                       m.data_ptr<Moment>(), v.data_ptr<Moment>()};
  const AdamWFactors factors = adamw_factors(step);
  const uint64_t key = skip_elements(random_key(step.stream, step.step), step.first_element);
  at::parallel_for(0, master.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for_each_vector(end - begin,
                    [&](int64_t offset, int64_t count) { all.update(begin + offset, count, factors, key); });
  });
}

struct AdamW {
  static constexpr const char* name = "adamw_";
  static void check(const UpdateTensors& t) {
    check_tensors(t.weights, t.gradient, t.state.at(0), t.state.at(1), t.compute_copy);
  }
  static void on_cpu(const UpdateTensors& t, const OptimizerStep& step) {
    const Tensor &m = t.state[0], &v = t.state[1];
    with_element_type(t.gradient.scalar_type(), [&](auto g) {
      m.scalar_type() == at::kFloat
          ? step_cpu<decltype(g), float>(t.weights, t.gradient, m, v, t.compute_copy, step)
          : step_cpu<decltype(g), at::BFloat16>(t.weights, t.gradient, m, v, t.compute_copy, step);
    });
  }
};

}  // namespace

void adamw_(const Tensor& master, const Tensor& gradient, const Tensor& m, const Tensor& v,
            const OptionalTensor& compute_copy, const OptimizerStep& step) {
  const Tensor state[] = {m, v};
  call_update_rule<AdamW>({master, gradient, state, compute_copy}, step);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) { register_update_rule<AdamW>(m); }

}  // namespace moelab
