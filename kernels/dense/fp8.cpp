#include "kernels/dense/fp8.h"

#include "kernels/vector/vec.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <tuple>

#include "kernels/dense/fp8_parts.h"
#include "kernels/dense/product.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/operator/differentiable.h"
#include "kernels/operator/gpu.h"
#include "kernels/operator/op_handle.h"

namespace moelab {
namespace {

using at::Tensor;
using namespace fp8_detail;

constexpr int64_t kGrain = 16384;  // elements a task

struct Steps {
  float precision;  // distance of neighbours, relative to the power of two below them
  float smallest;   // distance of neighbours around 0
};

Steps steps_of(Fp8Format format) {
  return format == Fp8Format::e4m3 ? Steps{0x1p-3f, 0x1p-9f} : Steps{0x1p-2f, 0x1p-16f};
}

// x to the nearest fp8 number; x is in the format's range.
Vec rounded(const Vec& x, const Steps& steps) {
  const Vec power = x & Vec(std::bit_cast<float>(0x7F800000u));
  const Vec step = at::vec::maximum(power * Vec(steps.precision), Vec(steps.smallest));
  const Vec shift = step * Vec(0x1.8p23f);          // the last place of x + shift is step: the sum rounds
  return ((x + shift) - shift) | (x & Vec(-0.0f));  // a negative number that rounds to 0 keeps its sign
}

// The larger of `most` and |x|; NaN if either is, since at::vec's maximum keeps it.
Vec larger(const Vec& most, const Vec& x) { return at::vec::maximum(most, x.abs()); }

template <class T>
void round_row(const T* from, T* to, int64_t columns, Fp8Format format) {
  Vec most(0);
  for_each_vector(columns, [&](int64_t c, int64_t n) { most = larger(most, load_float(from + c, n)); });
  std::array<float, kLanes> lanes;
  store_float(lanes.data(), most);
  float all = 0;
  for (const float lane : lanes) all = std::isnan(all) || lane <= all ? all : lane;
  const float scale = fp8_scale(all, format);
  const Steps steps = steps_of(format);
  for_each_vector(columns, [&](int64_t c, int64_t n) {
    store_float(to + c, rounded(load_float(from + c, n) * Vec(1 / scale), steps) * Vec(scale), n);
  });
}

// Rounds `n` adjacent columns, a lane each.
template <class T>
void round_strip(const T* from, T* to, int64_t rows, int64_t columns, int64_t n, Fp8Format format) {
  Vec most(0);
  for (int64_t r = 0; r < rows; ++r) most = larger(most, load_float(from + r * columns, n));
  std::array<float, kLanes> lanes;
  store_float(lanes.data(), most);
  for (float& lane : lanes) lane = fp8_scale(lane, format);
  const Vec scale = load_float(lanes.data()), inverse = Vec(1) / scale;
  const Steps steps = steps_of(format);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = r * columns;
    store_float(to + i, rounded(load_float(from + i, n) * inverse, steps) * scale, n);
  }
}

template <class T>
void round_all(const T* from, T* to, int64_t rows, int64_t columns, Fp8Format format, Fp8Scale scale) {
  if (scale == Fp8Scale::by_row) {
    at::parallel_for(0, rows, kGrain / std::max<int64_t>(columns, 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) round_row(from + r * columns, to + r * columns, columns, format);
    });
    return;
  }
  const int64_t strips = (columns + kLanes - 1) / kLanes;
  at::parallel_for(0, strips, kGrain / (kLanes * std::max<int64_t>(rows, 1)) + 1,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t s = begin; s < end; ++s) {
                       const int64_t c = s * kLanes;
                       round_strip(from + c, to + c, rows, columns, std::min(kLanes, columns - c), format);
                     }
                   });
}

class Fp8Linear : public Differentiable<Fp8Linear> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& weight) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, weight});
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = weight.size(0);
    return fp8_mm(x.flatten(0, -2), Fp8Format::e4m3, weight.t()).view(shape);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto saved = context->get_saved_variables();
    const Tensor dy = gradients[0].flatten(0, -2).contiguous(), x = saved[0].flatten(0, -2);
    return {fp8_mm(dy, Fp8Format::e5m2, saved[1]).view(saved[0].sizes()), fp8_mm(dy.t(), Fp8Format::e5m2, x)};
  }
};

std::tuple<Tensor, Tensor> codes_cpu(const Tensor& x, int64_t code) {
  const auto format = static_cast<Fp8Format>(code);
  const std::array<int64_t, 2> padding{0, fp8_padded(x.size(1)) - x.size(1)};
  const Tensor wide = x.to(at::kFloat).contiguous(), scale = wide.abs().amax(1, true);
  float* const scales = scale.mutable_data_ptr<float>();
  for (int64_t r = 0; r < x.size(0); ++r) scales[r] = fp8_scale(scales[r], format);
  const Tensor bytes = wide.div(scale).to(type_of(format)).view(at::kByte);
  return {at::constant_pad_nd(bytes, padding).view(type_of(format)), scale};
}

std::tuple<Tensor, Tensor> codes_meta(const Tensor& x, int64_t code) {
  const CodesOutputs out(x, static_cast<Fp8Format>(code));
  return {out.codes, out.scale};
}

// Each row of x, with zeros up to fp8_padded(columns).
Fp8Codes padded_codes(const Tensor& x, Fp8Format format) {
  const auto type = x.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf,
              "fp8_codes: fp32, bf16 or fp16, not ", type);
  TORCH_CHECK(x.dim() == 2 && (has_contiguous_rows(x) || has_contiguous_columns(x)),
              "fp8_codes: a matrix with contiguous rows or columns, not ", x.sizes(), " with strides ",
              x.strides());
  static const auto op =
      operator_handle<std::tuple<Tensor, Tensor>(const Tensor&, int64_t)>("moelab::fp8_codes");
  const auto [codes, scale] = op.call(x, static_cast<int64_t>(format));
  return {codes, scale};
}

}  // namespace

void fp8_round_out(const Tensor& to, const Tensor& x, Fp8Format format, Fp8Scale scale) {
  TORCH_CHECK(x.dim() == 2 && x.is_contiguous() && to.is_contiguous() && to.sizes() == x.sizes() &&
                  to.scalar_type() == x.scalar_type(),
              "fp8_round: contiguous matrices of one shape and type, not ", x.sizes(), " and ", to.sizes());
  if (x.is_meta() && !meta_is_cuda()) return;
  if (x.is_cuda() || x.is_meta()) {
    const auto [codes, factor] = fp8_codes(x, format, scale);
    to.copy_(codes.to(at::kFloat).mul_(factor));
    return;
  }
  with_element_type(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    round_all(x.const_data_ptr<T>(), to.mutable_data_ptr<T>(), x.size(0), x.size(1), format, scale);
  });
}

Tensor fp8_rounded(const Tensor& x, Fp8Format format, Fp8Scale scale) {
  const Tensor to = at::empty(x.sizes(), x.options());
  fp8_round_out(to, x, format, scale);
  return to;
}

Fp8Codes fp8_codes(const Tensor& x, Fp8Format format, Fp8Scale scale) {
  const bool by_row = scale == Fp8Scale::by_row;
  const Tensor lines = by_row ? x : x.t();
  const Fp8Codes padded = padded_codes(lines, format);
  const Tensor codes = padded.codes.narrow(1, 0, lines.size(1));
  return by_row ? Fp8Codes{codes, padded.scale} : Fp8Codes{codes.t(), padded.scale.t()};
}

bool has_fp8_products(c10::Device device) {
  constexpr int kAda = 89;
  if (device.is_meta()) return meta_capability() >= kAda;
  return device.is_cuda() && compute_capability(device) >= kAda;
}

Fp8Factors fp8_factors(const Tensor& a, Fp8Format format, const Tensor& b) {
  const Fp8Codes left = padded_codes(a, format), right = padded_codes(b.t(), Fp8Format::e4m3);
  return {left.codes, right.codes.t(), left.scale, right.scale.t()};
}

Tensor fp8_mm(const Tensor& a, Fp8Format format, const Tensor& b) {
  const bool whole = a.size(0) > 0 && a.size(1) > 0 && b.size(1) % 16 == 0;
  if (whole && a.scalar_type() == at::kBFloat16 && has_fp8_products(a.device())) {
    const Fp8Factors f = fp8_factors(a, format, b);
    if (a.is_meta()) return at::empty({a.size(0), b.size(1)}, a.options());
    return at::_scaled_mm(f.a, f.b, f.scale_a, f.scale_b, {}, {}, at::kBFloat16);
  }
  const auto rounded = [](const Tensor& x, Fp8Format of, Fp8Scale scale, Fp8Scale across) {
    return x.is_contiguous() ? fp8_rounded(x, of, scale) : fp8_rounded(x.t(), of, across).t();
  };
  constexpr auto row = Fp8Scale::by_row, column = Fp8Scale::by_column;
  return matrix_product(rounded(a, format, row, column), rounded(b, Fp8Format::e4m3, column, row));
}

Tensor fp8_linear(const Tensor& x, const Tensor& weight) { return Fp8Linear::apply(x, weight); }

TORCH_LIBRARY_FRAGMENT(moelab, m) { m.def("fp8_codes(Tensor x, int format) -> (Tensor, Tensor)"); }
TORCH_LIBRARY_IMPL(moelab, CPU, m) { m.impl("fp8_codes", codes_cpu); }
TORCH_LIBRARY_IMPL(moelab, Meta, m) { m.impl("fp8_codes", codes_meta); }

}  // namespace moelab
