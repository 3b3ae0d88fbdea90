#include "kernels/attention/rope.h"

#include "kernels/vector/vec.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "kernels/operator/differentiable.h"
#include "kernels/operator/op_handle.h"

// Axes: B batch, S sequence, N packed heads, hd width of a head.
namespace moelab {
namespace {

using at::Tensor;

// Rotates one head by the angles of its position, or back when `sign` is -1. `to` may be `from`.
template <class T>
void rotate_head(const T* from, T* to, const float* cosine, const float* sine, int64_t half, float sign) {
  for_each_vector(half, [&](int64_t i, int64_t n) {
    const Vec a = load_float(from + i, n), b = load_float(from + half + i, n);
    const Vec c = load_float(cosine + i, n), s = load_float(sine + i, n) * Vec(sign);
    store_float(to + i, a * c - b * s, n);
    store_float(to + half + i, b * c + a * s, n);
  });
}

// `to` may be `from`; if it is not, the heads after the rotated ones are copied.
void rotate(const Tensor& from, Tensor& to, int64_t rotated_heads, const Tensor& table, float sign) {
  const int64_t hd = from.size(3), width = from.size(2) * hd, half = hd / 2, places = table.size(0);
  const float* angles = table.const_data_ptr<float>();
  with_element_type(from.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* in = from.const_data_ptr<T>();
    T* out = to.mutable_data_ptr<T>();
    const auto positions = [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const float* cosine = angles + p % places * hd;
        const T* row = in + p * width;
        T* row_out = out + p * width;
        for (int64_t i = 0; i < rotated_heads * hd; i += hd) {
          rotate_head(row + i, row_out + i, cosine, cosine + half, half, sign);
        }
        if (in != out) std::copy(row + rotated_heads * hd, row + width, row_out + rotated_heads * hd);
      }
    };
    at::parallel_for(0, from.size(0) * from.size(1),
                     at::internal::GRAIN_SIZE / std::max<int64_t>(width, 1) + 1, positions);
  });
}

Tensor& forward_cpu(Tensor& qkv, int64_t rotated_heads, const Tensor& table) {
  rotate(qkv, qkv, rotated_heads, table, 1);
  return qkv;
}

Tensor backward_cpu(const Tensor& grad, int64_t rotated_heads, const Tensor& table) {
  Tensor out = at::empty_like(grad);
  rotate(grad, out, rotated_heads, table, -1);
  return out;
}

Tensor& forward_meta(Tensor& qkv, int64_t, const Tensor&) { return qkv; }

Tensor backward_meta(const Tensor& grad, int64_t, const Tensor&) { return at::empty_like(grad); }

class Rope : public Differentiable<Rope> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor qkv, int64_t rotated_heads,
                        const Tensor& table) {
    static const auto op = operator_handle<Tensor&(Tensor&, int64_t, const Tensor&)>("moelab::rope_");
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      op.call(qkv, rotated_heads, table);
    }
    context->mark_dirty({qkv});
    // Not among the saved variables: the table is shared by all layers, and a saved-tensor hook would move or
    // compress it once a layer.
    context->saved_data["table"] = table;
    context->saved_data["rotated_heads"] = rotated_heads;
    return qkv;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op =
        operator_handle<Tensor(const Tensor&, int64_t, const Tensor&)>("moelab::rope_backward");
    at::AutoDispatchBelowADInplaceOrView guard;
    Tensor dqkv = op.call(grads[0].contiguous(), context->saved_data["rotated_heads"].toInt(),
                          context->saved_data["table"].toTensor());
    return {dqkv, Tensor(), Tensor()};
  }
};

}  // namespace

Tensor rope_table(int64_t sequence, int64_t head_dim, double theta, c10::Device device,
                  int64_t first_position) {
  TORCH_CHECK(head_dim > 0 && head_dim % 2 == 0, "rope_table: head_dim must be even, got ", head_dim);
  const int64_t half = head_dim / 2;
  const auto options = at::TensorOptions().dtype(at::kFloat);
  if (device.is_meta()) return at::empty({sequence, 2, half}, options.device(device));
  Tensor table = at::empty({sequence, 2, half}, options);
  float* out = table.mutable_data_ptr<float>();
  for (int64_t s = 0; s < sequence; ++s, out += head_dim) {
    for (int64_t i = 0; i < half; ++i) {
      const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      const double angle = static_cast<double>(first_position + s) * frequency;
      out[i] = static_cast<float>(std::cos(angle));
      out[half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table.to(device);
}

Tensor rope_(Tensor qkv, int64_t rotated_heads, const Tensor& table) {
  TORCH_CHECK(qkv.dim() == 4 && qkv.is_contiguous(), "rope_: qkv must be (B, S, N, hd), contiguous");
  TORCH_CHECK(rotated_heads >= 0 && rotated_heads <= qkv.size(2), "rope_: ", rotated_heads, " of ",
              qkv.size(2), " heads");
  const bool fits = table.size(0) == qkv.size(1) || table.size(0) == qkv.size(0) * qkv.size(1);
  TORCH_CHECK(table.dim() == 3 && fits && 2 * table.size(2) == qkv.size(3),
              "rope_: the table is for another shape: ", table.sizes(), " for qkv ", qkv.sizes());
  return Rope::apply(qkv, rotated_heads, table);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def("rope_(Tensor(a!) qkv, int rotated_heads, Tensor table) -> Tensor(a!)");
  m.def("rope_backward(Tensor grad, int rotated_heads, Tensor table) -> Tensor");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("rope_", forward_cpu);
  m.impl("rope_backward", backward_cpu);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("rope_", forward_meta);
  m.impl("rope_backward", backward_meta);
}

}  // namespace moelab
