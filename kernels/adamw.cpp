#include "kernels/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "kernels/adam_rule.h"
#include "kernels/load_gradient.h"
#include "kernels/op_handle.h"
#include "kernels/stepped_weights.h"
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

void check(const Tensor& master, const Tensor& gradient, const Tensor& m, const Tensor& v,
           const OptionalTensor& copy) {
  check_step("adamw", master, gradient, copy);
  const auto dtype = m.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
  check_state("adamw", "m", m, dtype, master.numel());
  check_state("adamw", "v", v, dtype, master.numel());
}

// fp32 as they are, bf16 rounded stochastically: m with one half of the elements' random bits, v with the
// other.
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

void adamw_cpu(Tensor master, const Tensor& gradient, Tensor m, Tensor v, OptionalTensor copy,
               at::ArrayRef<double> numbers, at::IntArrayRef counters, const OptionalTensor& live) {
  check(master, gradient, m, v, copy);
  const auto step = step_now(numbers, counters, live);
  if (!step) return;
  with_element_type(gradient.scalar_type(), [&](auto g) {
    m.scalar_type() == at::kFloat ? step_cpu<decltype(g), float>(master, gradient, m, v, copy, *step)
                                  : step_cpu<decltype(g), at::BFloat16>(master, gradient, m, v, copy, *step);
  });
}

void adamw_meta(Tensor master, const Tensor& gradient, Tensor m, Tensor v, OptionalTensor copy,
                at::ArrayRef<double>, at::IntArrayRef, const OptionalTensor&) {
  check(master, gradient, m, v, copy);
}

#ifdef MOELAB_WITH_CUDA
void adamw_cuda(Tensor master, const Tensor& gradient, Tensor m, Tensor v, OptionalTensor copy,
                at::ArrayRef<double> numbers, at::IntArrayRef counters, const OptionalTensor& live) {
  check(master, gradient, m, v, copy);
  const c10::cuda::CUDAGuard guard(master.device());
  const OptimizerStep step = step_from(numbers, counters);
  cuda::adamw(cuda::weight_pointers(master, copy, step), cuda::gradient_pointer(gradient), m.data_ptr(),
              v.data_ptr(), m.scalar_type() == at::kBFloat16, cuda::moment_key(step), master.numel(),
              adamw_factors(step), cuda::live_call(step, live), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
#endif

using Signature = void(Tensor, const Tensor&, Tensor, Tensor, OptionalTensor, at::ArrayRef<double>,
                       at::IntArrayRef, const OptionalTensor&);

}  // namespace

void adamw_(const Tensor& master, const Tensor& gradient, const Tensor& m, const Tensor& v,
            const OptionalTensor& compute_copy, const OptimizerStep& step) {
  static const auto op = operator_handle<Signature>("moelab::adamw_");
  const at::AutoDispatchBelowADInplaceOrView guard;
  const StepArguments arguments(step);
  op.call(master, gradient, m, v, compute_copy, arguments.numbers, arguments.counters, arguments.live);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def(
      "adamw_(Tensor(a!) master, Tensor gradient, Tensor(b!) m, Tensor(c!) v, Tensor(d!)? compute_copy, "
      "float[] numbers, int[] counters, Tensor? live) -> ()");
}

TORCH_LIBRARY_IMPL(moelab, CPU, m) { m.impl("adamw_", &adamw_cpu); }

TORCH_LIBRARY_IMPL(moelab, Meta, m) { m.impl("adamw_", &adamw_meta); }

#ifdef MOELAB_WITH_CUDA
TORCH_LIBRARY_IMPL(moelab, CUDA, m) { m.impl("adamw_", &adamw_cuda); }
#endif

}  // namespace moelab
