#include "kernels/dense/rms_norm.h"

#include "kernels/vector/vec.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "kernels/dense/rms_norm_parts.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/operator/differentiable.h"
#include "kernels/operator/op_handle.h"

// Axes: R rows (all but the last axis of x), D width, P partial sums of the weight's gradient.
namespace moelab {
namespace {

using at::Tensor;
using namespace rms_norm_detail;

// How rows are split for the partial sums of the weight's gradient. It depends on the shape alone, so that
// the result has the same bits on any number of threads.
struct Split {
  int64_t rows_each, parts;
  explicit Split(int64_t rows) : rows_each(std::max<int64_t>(16, at::divup(rows, 64))) {
    parts = at::divup(rows, rows_each);
  }
};

template <class T>
float normalise_row(const T* x, const float* weight, T* y, int64_t D, double eps) {
  Vec squares(0);
  for_each_vector(D, [&](int64_t i, int64_t n) {
    const Vec v = load_float(x + i, n);
    squares = at::vec::fmadd(v, v, squares);
  });
  const float rstd =
      static_cast<float>(1 / std::sqrt(horizontal_sum(squares) / static_cast<double>(D) + eps));
  for_each_vector(D, [&](int64_t i, int64_t n) {
    store_float(y + i, load_float(x + i, n) * Vec(rstd) * load_float(weight + i, n), n);
  });
  return rstd;
}

// dx = rstd * (g*w - x * rstd^2 * mean(g*w*x)); adds g * x * rstd to a partial sum of dw.
template <class T>
void backward_row(const T* g, const T* x, const float* weight, float rstd, T* dx, float* partial, int64_t D) {
  Vec dot(0);
  for_each_vector(D, [&](int64_t i, int64_t n) {
    const Vec gx = load_float(g + i, n) * load_float(x + i, n);
    dot = at::vec::fmadd(gx, load_float(weight + i, n), dot);
    store_float(partial + i, at::vec::fmadd(gx, Vec(rstd), load_float(partial + i, n)), n);
  });
  const float scale = horizontal_sum(dot) / static_cast<float>(D) * rstd * rstd;
  for_each_vector(D, [&](int64_t i, int64_t n) {
    const Vec gw = load_float(g + i, n) * load_float(weight + i, n);
    store_float(dx + i, (gw - load_float(x + i, n) * Vec(scale)) * Vec(rstd), n);
  });
}

void sum_parts(const Tensor& partial_PD, Tensor& dweight) {
  const int64_t P = partial_PD.size(0), D = partial_PD.size(1);
  const float* partial = partial_PD.const_data_ptr<float>();
  float* out = dweight.mutable_data_ptr<float>();
  for_each_vector(D, [&](int64_t i, int64_t n) {
    Vec sum(0);
    for (int64_t p = 0; p < P; ++p) sum = sum + load_float(partial + p * D + i, n);
    store_float(out + i, sum, n);
  });
}

std::tuple<Tensor, Tensor> forward_cpu(const Tensor& x, const Tensor& weight, double eps) {
  ForwardOutputs out(x);
  const int64_t D = x.size(-1);
  const Rows rows = rows_of(x).value();
  with_element_type(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* in = x.const_data_ptr<T>();
    T* y = out.y.mutable_data_ptr<T>();
    float* rstd = out.rstd.mutable_data_ptr<float>();
    const float* w = weight.const_data_ptr<float>();
    at::parallel_for(0, row_count(x), at::internal::GRAIN_SIZE / std::max<int64_t>(D, 1) + 1,
                     [&](int64_t begin, int64_t end) {
                       for (int64_t r = begin; r < end; ++r) {
                         rstd[r] = normalise_row(in + rows.offset(r), w, y + r * D, D, eps);
                       }
                     });
  });
  return {out.y, out.rstd};
}

std::tuple<Tensor, Tensor> forward_meta(const Tensor& x, const Tensor&, double) {
  ForwardOutputs out(x);
  return {out.y, out.rstd};
}

std::tuple<Tensor, Tensor> backward_cpu(const Tensor& grad, const Tensor& x, const Tensor& rstd,
                                        const Tensor& weight) {
  const int64_t D = x.size(-1), R = row_count(x);
  const Split split(R);
  BackwardOutputs out(x, split.parts);
  const Rows rows = rows_of(x).value();
  with_element_type(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T *g = grad.const_data_ptr<T>(), *in = x.const_data_ptr<T>();
    T* dx = out.dx.mutable_data_ptr<T>();
    const float *w = weight.const_data_ptr<float>(), *r_std = rstd.const_data_ptr<float>();
    float* partials = out.partial_PD.mutable_data_ptr<float>();
    at::parallel_for(0, split.parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        float* partial = partials + p * D;
        std::fill_n(partial, D, 0.0f);
        for (int64_t r = p * split.rows_each; r < std::min(R, (p + 1) * split.rows_each); ++r) {
          backward_row(g + r * D, in + rows.offset(r), w, r_std[r], dx + r * D, partial, D);
        }
      }
    });
  });
  sum_parts(out.partial_PD, out.dweight);
  return {out.dx, out.dweight};
}

std::tuple<Tensor, Tensor> backward_meta(const Tensor&, const Tensor& x, const Tensor&, const Tensor&) {
  const int64_t rows = row_count(x);
  BackwardOutputs out(x, meta_is_cuda() ? cuda::rms_norm_parts(rows) : Split(rows).parts);
  return {out.dx, out.dweight};
}

class RmsNorm : public Differentiable<RmsNorm> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& weight,
                        double eps) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = operator_handle<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, double)>(
        "moelab::rms_norm_forward");
    auto [y, rstd] = op.call(x, weight, eps);
    context->save_for_backward({x, weight, rstd});
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op = operator_handle<std::tuple<Tensor, Tensor>(
        const Tensor&, const Tensor&, const Tensor&, const Tensor&)>("moelab::rms_norm_backward");
    const auto saved = context->get_saved_variables();
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [dx, dweight] = op.call(grads[0].contiguous(), saved[0], saved[2], saved[1]);
    return {dx, dweight, Tensor()};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1 && weight.size(0) == x.size(-1), "rms_norm: weight must be (",
              x.dim() > 0 ? x.size(-1) : 0, "), got ", weight.sizes());
  TORCH_CHECK(weight.scalar_type() == at::kFloat && weight.is_contiguous(), "rms_norm: weight must be fp32");
  return RmsNorm::apply(rows_of(x) ? x : x.contiguous(), weight, eps);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def("rms_norm_forward(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def("rms_norm_backward(Tensor grad, Tensor x, Tensor rstd, Tensor weight) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("rms_norm_forward", forward_cpu);
  m.impl("rms_norm_backward", backward_cpu);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("rms_norm_forward", forward_meta);
  m.impl("rms_norm_backward", backward_meta);
}

}  // namespace moelab
