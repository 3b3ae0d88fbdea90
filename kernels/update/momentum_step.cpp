#include "kernels/update/momentum_step.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "kernels/update/load_gradient.h"
#include "kernels/update/step_factors.h"
#include "kernels/update/stepped_weights.h"
#include "kernels/update/update_operator.h"
#include "kernels/vector/vec.h"

namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kGrain = 16384;

using Factors = MomentumFactors;

void check_tensors(const Tensor& master, const Tensor& gradient, const Tensor& m,
                   const OptionalTensor& copy) {
  check_step("momentum_step", master, gradient, copy);
  check_state("momentum_step", "m", m, at::kFloat, master.numel());
}

Vec sign(const Vec& x) { return Vec::blendv(Vec::blendv(Vec(0), Vec(1), x > Vec(0)), Vec(-1), x < Vec(0)); }

struct Lion {
  static constexpr const char* name = "lion_";
  static Vec direction(const Vec& g, Vec& m, const Factors& f) {
    const Vec u = sign(at::vec::fmadd(m, Vec(f.beta1), g * Vec(f.rest1)));
    m = at::vec::fmadd(m, Vec(f.beta2), g * Vec(f.rest2));
    return u;
  }
};

struct Sgd {
  static constexpr const char* name = "sgd_";
  static Vec direction(const Vec& g, Vec& m, const Factors& f) {
    m = at::vec::fmadd(m, Vec(f.beta1), g);
    return m;
  }
};

template <class Rule, class Gradient>
void step_cpu(const Tensor& master, const Tensor& gradient, const Tensor& m, const OptionalTensor& copy,
              const OptimizerStep& step) {
  const SteppedWeights weights(master, copy, step);
  const Factors f = momentum_factors(step);
  float* pm = m.data_ptr<float>();
  const Gradient* pg = gradient.data_ptr<Gradient>();
  at::parallel_for(0, master.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for_each_vector(end - begin, [&](int64_t offset, int64_t count) {
      const int64_t i = begin + offset;
      Vec moment = load_float(pm + i, count);
      const Vec u = Rule::direction(load_gradient(pg + i, count, f.gradient_scale), moment, f);
      const Vec weight = at::vec::fmsub(weights.load(i, count), Vec(f.keep), Vec(f.lr) * u);
      store_float(pm + i, moment, count);
      weights.store(i, weight, count);
    });
  });
}

template <class Rule>
struct Momentum {
  static constexpr const char* name = Rule::name;
  static void check(const UpdateTensors& t) {
    check_tensors(t.weights, t.gradient, t.state.at(0), t.compute_copy);
  }
  static void on_cpu(const UpdateTensors& t, const OptimizerStep& step) {
    with_element_type(t.gradient.scalar_type(), [&](auto g) {
      step_cpu<Rule, decltype(g)>(t.weights, t.gradient, t.state[0], t.compute_copy, step);
    });
  }
};

}  // namespace

void momentum_step_(MomentumRule rule, const Tensor& master, const Tensor& gradient, const Tensor& m,
                    const OptionalTensor& compute_copy, const OptimizerStep& step) {
  const UpdateTensors tensors{master, gradient, m, compute_copy};
  rule == MomentumRule::lion ? call_update_rule<Momentum<Lion>>(tensors, step)
                             : call_update_rule<Momentum<Sgd>>(tensors, step);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  register_update_rule<Momentum<Lion>>(m);
  register_update_rule<Momentum<Sgd>>(m);
}

}  // namespace moelab
