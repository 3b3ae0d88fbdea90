#include "kernels/dense/linear.h"

#include "kernels/vector/blocked_product.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "kernels/dense/product.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/operator/differentiable.h"
#include "kernels/operator/op_handle.h"

// Axes: T rows, K width of x, N width of the result.
namespace moelab {
namespace {

using at::Tensor;

// Forward and backward serve the CPU and meta, where nothing is computed.
Tensor linear_forward(const Tensor& x_TK, const Tensor& w) {
  const int64_t T = x_TK.size(0), N = w.size(0), K = w.size(1);
  Tensor y = at::empty({T, N}, x_TK.options());
  with_element_type(x_TK.scalar_type(), [&](auto zero) {
    using Element = decltype(zero);
    const KindScope scope(Kind::activations);
    const Tensor workers = BlockedProducts<Element>::make_workers(x_TK, 0, K);
    if (y.is_meta()) return;
    BlockedProducts<Element>(workers, 0)
        .multiply_by_transpose(T, x_TK.const_data_ptr<Element>(), K, N,
                               halves_of(w.const_data_ptr<Element>(), K),
                               store_rows(y.mutable_data_ptr<Element>(), N));
  });
  return y;
}

// Returns dx, dw.
std::tuple<Tensor, Tensor> linear_backward(const Tensor& dy_TN, const Tensor& x_TK, const Tensor& w) {
  const int64_t T = x_TK.size(0), N = w.size(0), K = w.size(1), rows = round_up(T, kRowBlock);
  Tensor dx = at::empty_like(x_TK), dw;
  {
    KindScope scope(Kind::gradients);
    dw = at::empty_like(w);
  }
  with_element_type(x_TK.scalar_type(), [&](auto zero) {
    using Element = decltype(zero);
    const KindScope scope(Kind::activations);
    const Tensor workers = BlockedProducts<Element>::make_workers(x_TK, K, N);
    const Tensor words = at::empty({rows / kInWord<Element> * K}, x_TK.options().dtype(at::kInt));
    if (dx.is_meta()) return;
    const auto* dy = dy_TN.const_data_ptr<Element>();
    const BlockedProducts<Element> products(workers, K);
    products.multiply(T, dy, N, K, columns_of(w.const_data_ptr<Element>(), N, K),
                      store_rows(dx.mutable_data_ptr<Element>(), K));
    const PackedRight<Element> by_rows{words.mutable_data_ptr<int32_t>(), rows, K};
    products.pack(by_rows, x_TK.const_data_ptr<Element>(), T);
    products.multiply_transpose(T, dy, N, by_rows, stream_rows(dw.mutable_data_ptr<Element>(), K));
  });
  return {dx, dw};
}

struct LinearFunction : Differentiable<LinearFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x_TK, const Tensor& w) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x_TK, w});
    return operator_handle<decltype(linear_forward)>("moelab::linear_forward").call(x_TK, w);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list dy) {
    const auto saved = ctx->get_saved_variables();
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [dx, dw] = operator_handle<decltype(linear_backward)>("moelab::linear_backward")
                        .call(dy[0].contiguous(), saved[0], saved[1]);
    return {dx, dw};
  }
};

std::vector<int64_t> shape_of(const Tensor& x, const Tensor& w) {
  auto shape = x.sizes().vec();
  shape.back() = w.size(0);
  return shape;
}

bool is_blocked(const Tensor& x, const Tensor& w) {
  const bool on_cpu = x.is_cpu() || (x.is_meta() && !meta_is_cuda());
  const bool packed = x.is_contiguous() && w.is_contiguous();
  return on_cpu && packed && x.scalar_type() == w.scalar_type() &&
         x.numel() >= kRowBlock * w.size(1) &&  // below that, packing costs more than it saves
         has_blocked_product(x.scalar_type(), w.size(0), w.size(1));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def("linear_forward(Tensor x, Tensor weight) -> Tensor");
  m.def("linear_backward(Tensor dy, Tensor x, Tensor weight) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("linear_forward", linear_forward);
  m.impl("linear_backward", linear_backward);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("linear_forward", linear_forward);
  m.impl("linear_backward", linear_backward);
}

Tensor linear(const Tensor& x, const Tensor& w) {
  if (!is_blocked(x, w)) {
    return multiplies_as_fp32(x) ? matrix_product(x.flatten(0, -2), w.t()).view(shape_of(x, w))
                                 : at::linear(x, w);
  }
  return at::_unsafe_view(LinearFunction::apply(x.flatten(0, -2), w), shape_of(x, w));
}

}  // namespace moelab
