#include "kernels/momentum_step.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "kernels/cuda/live_step.h"
#include "kernels/load_gradient.h"
#include "kernels/op_handle.h"
#include "kernels/stepped_weights.h"
#include "kernels/vec.h"

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

constexpr int64_t kGrain = 16384;

using Factors = MomentumFactors;

Factors factors_of(const OptimizerStep& s) {
  const auto f = [](double x) { return static_cast<float>(x); };
  return {f(1 - s.lr * s.weight_decay), f(s.lr), f(s.beta1), f(s.beta2), f(1 - s.beta1), f(1 - s.beta2),
          f(s.gradient_scale)};
}

void check(const Tensor& master, const Tensor& gradient, const Tensor& m, const OptionalTensor& copy) {
  check_step("momentum_step", master, gradient, copy);
  check_state("momentum_step", "m", m, at::kFloat, master.numel());
}

Vec sign(const Vec& x) { return Vec::blendv(Vec::blendv(Vec(0), Vec(1), x > Vec(0)), Vec(-1), x < Vec(0)); }

struct Lion {
  static Vec direction(const Vec& g, Vec& m, const Factors& f) {
    const Vec u = sign(at::vec::fmadd(m, Vec(f.beta1), g * Vec(f.rest1)));
    m = at::vec::fmadd(m, Vec(f.beta2), g * Vec(f.rest2));
    return u;
  }
};

struct Sgd {
  static Vec direction(const Vec& g, Vec& m, const Factors& f) {
    m = at::vec::fmadd(m, Vec(f.beta1), g);
    return m;
  }
};

template <class Rule, class Gradient>
void step_cpu(const Tensor& master, const Tensor& gradient, const Tensor& m, const OptionalTensor& copy,
              const OptimizerStep& step) {
  const SteppedWeights weights(master, copy, step);
  const Factors f = factors_of(step);
  float* pm = m.data_ptr<float>();
  const Gradient* pg = gradient.data_ptr<Gradient>();
  at::parallel_for(0, master.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for_each_vector(end - begin, [&](int64_t offset, int64_t count) {
      const int64_t i = begin + offset;
      Vec moment = load_float(pm + i, count);
      const Vec u = Rule::direction(load_gradient(pg + i, count, f.gradient_scale), moment, f);
      const Vec weight = weights.load(i, count) * Vec(f.keep) - Vec(f.lr) * u;
      store_float(pm + i, moment, count);
      weights.store(i, weight, count);
    });
  });
}

template <class Rule>
void momentum_cpu(Tensor master, const Tensor& gradient, Tensor m, OptionalTensor copy,
                  at::ArrayRef<double> numbers, at::IntArrayRef counters, const OptionalTensor& live) {
  check(master, gradient, m, copy);
  const auto step = step_now(numbers, counters, live);
  if (!step) return;
  with_element_type(gradient.scalar_type(),
                    [&](auto g) { step_cpu<Rule, decltype(g)>(master, gradient, m, copy, *step); });
}

void momentum_meta(Tensor master, const Tensor& gradient, Tensor m, OptionalTensor copy, at::ArrayRef<double>,
                   at::IntArrayRef, const OptionalTensor&) {
  check(master, gradient, m, copy);
}

#ifdef MOELAB_WITH_CUDA
template <bool kLion>
void momentum_cuda(Tensor master, const Tensor& gradient, Tensor m, OptionalTensor copy,
                   at::ArrayRef<double> numbers, at::IntArrayRef counters, const OptionalTensor& live) {
  check(master, gradient, m, copy);
  const c10::cuda::CUDAGuard guard(master.device());
  const OptimizerStep step = step_from(numbers, counters);
  cuda::momentum_step(kLion, cuda::weight_pointers(master, copy, step), cuda::gradient_pointer(gradient),
                      m.data_ptr<float>(), master.numel(), factors_of(step), cuda::live_call(step, live),
                      c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
#endif

using Signature = void(Tensor, const Tensor&, Tensor, OptionalTensor, at::ArrayRef<double>, at::IntArrayRef,
                       const OptionalTensor&);

}  // namespace

void momentum_step_(MomentumRule rule, const Tensor& master, const Tensor& gradient, const Tensor& m,
                    const OptionalTensor& compute_copy, const OptimizerStep& step) {
  static const auto lion = operator_handle<Signature>("moelab::lion_");
  static const auto sgd = operator_handle<Signature>("moelab::sgd_");
  const at::AutoDispatchBelowADInplaceOrView guard;
  const StepArguments arguments(step);
  (rule == MomentumRule::lion ? lion : sgd)
      .call(master, gradient, m, compute_copy, arguments.numbers, arguments.counters, arguments.live);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def(
      "lion_(Tensor(a!) master, Tensor gradient, Tensor(b!) m, Tensor(c!)? compute_copy, float[] numbers, "
      "int[] counters, Tensor? live) -> ()");
  m.def(
      "sgd_(Tensor(a!) master, Tensor gradient, Tensor(b!) m, Tensor(c!)? compute_copy, float[] numbers, "
      "int[] counters, Tensor? live) -> ()");
}

TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("lion_", &momentum_cpu<Lion>);
  m.impl("sgd_", &momentum_cpu<Sgd>);
}

TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("lion_", &momentum_meta);
  m.impl("sgd_", &momentum_meta);
}

#ifdef MOELAB_WITH_CUDA
TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("lion_", &momentum_cuda<true>);
  m.impl("sgd_", &momentum_cuda<false>);
}
#endif

}  // namespace moelab
