#include "kernels/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <cmath>

#include "kernels/cuda/adamw.h"
#include "kernels/op_handle.h"
#include "kernels/vec.h"
#ifdef MOELAB_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kGrain = 16384;

void check(const Tensor& master, const Tensor& gradient, const Tensor& m, const Tensor& v,
           const OptionalTensor& copy) {
  const auto ok = [&](const Tensor& t, at::ScalarType dtype) {
    return t.scalar_type() == dtype && t.is_contiguous() && t.numel() == master.numel();
  };
  TORCH_CHECK(ok(master, at::kFloat) && ok(m, at::kFloat) && ok(v, at::kFloat),
              "adamw: master, m and v must be contiguous fp32 of one size");
  TORCH_CHECK(ok(gradient, at::kFloat) || ok(gradient, at::kBFloat16), "adamw: gradient ", gradient.sizes(),
              " ", gradient.scalar_type(), " must be contiguous fp32 or bf16 of master's size ",
              master.sizes());
  TORCH_CHECK(!copy || ok(*copy, at::kBFloat16),
              "adamw: the compute copy must be contiguous bf16 of master's size");
}

AdamWFactors factors_of(double lr, double beta1, double beta2, double eps, double weight_decay, int64_t step,
                        double gradient_scale) {
  TORCH_CHECK(step >= 1, "adamw: steps count from 1, not ", step);
  const double n = static_cast<double>(step);
  const auto f = [](double x) { return static_cast<float>(x); };
  return {.keep = f(1 - lr * weight_decay),
          .step_size = f(lr / (1 - std::pow(beta1, n))),
          .beta1 = f(beta1),
          .beta2 = f(beta2),
          .rest1 = f(1 - beta1),
          .rest2 = f(1 - beta2),
          .inverse_root = f(1 / std::sqrt(1 - std::pow(beta2, n))),
          .eps = f(eps),
          .gradient_scale = f(gradient_scale)};
}

template <class Gradient>
void update(float* master, const Gradient* gradient, float* m, float* v, at::BFloat16* copy, int64_t count,
            const AdamWFactors& f) {
  const Vec g = load_float(gradient, count) * Vec(f.gradient_scale);
  const Vec new_m = at::vec::fmadd(load_float(m, count), Vec(f.beta1), g * Vec(f.rest1));
  const Vec new_v = at::vec::fmadd(load_float(v, count), Vec(f.beta2), g * g * Vec(f.rest2));
  const Vec denominator = at::vec::fmadd(new_v.sqrt(), Vec(f.inverse_root), Vec(f.eps));
  const Vec new_master = load_float(master, count) * Vec(f.keep) - Vec(f.step_size) * (new_m / denominator);
  store_float(m, new_m, count);
  store_float(v, new_v, count);
  store_float(master, new_master, count);
  if (copy != nullptr) store_float(copy, new_master, count);
}

template <class Gradient>
void step_cpu(const Tensor& master, const Tensor& gradient, const Tensor& m, const Tensor& v,
              const OptionalTensor& copy, const AdamWFactors& factors) {
  float *p = master.data_ptr<float>(), *pm = m.data_ptr<float>(), *pv = v.data_ptr<float>();
  const Gradient* pg = gradient.data_ptr<Gradient>();
  at::BFloat16* pc = copy ? copy->data_ptr<at::BFloat16>() : nullptr;
  at::parallel_for(0, master.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for_each_vector(end - begin, [&](int64_t offset, int64_t count) {
      const int64_t i = begin + offset;
      update(p + i, pg + i, pm + i, pv + i, pc == nullptr ? nullptr : pc + i, count, factors);
    });
  });
}

void adamw_cpu(Tensor master, const Tensor& gradient, Tensor m, Tensor v, OptionalTensor copy, double lr,
               double beta1, double beta2, double eps, double weight_decay, int64_t step,
               double gradient_scale) {
  check(master, gradient, m, v, copy);
  const AdamWFactors factors = factors_of(lr, beta1, beta2, eps, weight_decay, step, gradient_scale);
  if (gradient.scalar_type() == at::kFloat) {
    step_cpu<float>(master, gradient, m, v, copy, factors);
  } else {
    step_cpu<at::BFloat16>(master, gradient, m, v, copy, factors);
  }
}

void adamw_meta(Tensor master, const Tensor& gradient, Tensor m, Tensor v, OptionalTensor copy, double,
                double, double, double, double, int64_t, double) {
  check(master, gradient, m, v, copy);
}

#ifdef MOELAB_WITH_CUDA
void adamw_cuda(Tensor master, const Tensor& gradient, Tensor m, Tensor v, OptionalTensor copy, double lr,
                double beta1, double beta2, double eps, double weight_decay, int64_t step,
                double gradient_scale) {
  check(master, gradient, m, v, copy);
  const AdamWFactors factors = factors_of(lr, beta1, beta2, eps, weight_decay, step, gradient_scale);
  C10_CUDA_CHECK(cuda::adamw(master.data_ptr<float>(), gradient.data_ptr(),
                             gradient.scalar_type() == at::kBFloat16, m.data_ptr<float>(),
                             v.data_ptr<float>(), copy ? copy->data_ptr() : nullptr, master.numel(), factors,
                             c10::cuda::getCurrentCUDAStream()));
}
#endif

using Signature = void(Tensor, const Tensor&, Tensor, Tensor, OptionalTensor, double, double, double, double,
                       double, int64_t, double);

}  // namespace

void adamw_(const Tensor& master, const Tensor& gradient, const Tensor& m, const Tensor& v,
            const OptionalTensor& compute_copy, const AdamWStep& s) {
  static const auto op = operator_handle<Signature>("moelab::adamw_");
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.call(master, gradient, m, v, compute_copy, s.lr, s.beta1, s.beta2, s.eps, s.weight_decay, s.step,
          s.gradient_scale);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def(
      "adamw_(Tensor(a!) master, Tensor gradient, Tensor(b!) m, Tensor(c!) v, Tensor(d!)? compute_copy, "
      "float lr, "
      "float beta1, float beta2, float eps, float weight_decay, int step, float gradient_scale) -> ()");
}

TORCH_LIBRARY_IMPL(moelab, CPU, m) { m.impl("adamw_", &adamw_cpu); }

TORCH_LIBRARY_IMPL(moelab, Meta, m) { m.impl("adamw_", &adamw_meta); }

#ifdef MOELAB_WITH_CUDA
TORCH_LIBRARY_IMPL(moelab, CUDA, m) { m.impl("adamw_", &adamw_cuda); }
#endif

}  // namespace moelab
