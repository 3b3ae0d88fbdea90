#include "kernels/vector/vec.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/dense/fp8.h"
#include "kernels/dense/product.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/moe/expert_block.h"
#include "kernels/moe/swiglu.h"
#include "kernels/operator/differentiable.h"
#include "kernels/operator/op_handle.h"

// Axes: T tokens, D width, F hidden width.
namespace moelab {
namespace {

using at::Tensor;

Tensor hidden(const Tensor& x, int64_t width) {
  KindScope scope(Kind::activation_experts);
  return at::empty({x.size(0), width}, x.options());
}

void check(const Tensor& x, const Tensor& w13, const Tensor& w2) {
  const int64_t F = w2.size(1), D = w2.size(0);
  TORCH_CHECK(x.dim() == 2 && x.size(1) == D && w13.sizes() == at::IntArrayRef({2 * F, D}),
              "dense block: weights ", w13.sizes(), " and ", w2.sizes(), " do not match x ", x.sizes());
  TORCH_CHECK(
      x.is_contiguous() && w13.scalar_type() == x.scalar_type() && w2.scalar_type() == x.scalar_type(),
      "dense block: x and weights must be contiguous and of one dtype");
}

// A product's factor, rounded to fp8 if asked for.
Tensor factor(const Tensor& x, bool fp8, Fp8Format format, Fp8Scale scale) {
  return fp8 ? fp8_rounded(x, format, scale) : x;
}
constexpr auto kForward = Fp8Format::e4m3, kGradient = Fp8Format::e5m2;
constexpr auto kRow = Fp8Scale::by_row, kColumn = Fp8Scale::by_column;

Tensor pre_activation(const Tensor& x, const Tensor& w13, bool fp8) {
  Tensor h = hidden(x, w13.size(0));
  product_out(h, factor(x, fp8, kForward, kRow), factor(w13, fp8, kForward, kRow).t());
  return h;
}

// Returns y and h. Forward and backward serve the CPU and meta, where products compute nothing.
std::tuple<Tensor, Tensor> block_forward(const Tensor& x, const Tensor& w13, const Tensor& w2, bool fp8) {
  check(x, w13, w2);
  const int64_t F = w2.size(1);
  Tensor y = at::empty_like(x), h = pre_activation(x, w13, fp8), act = hidden(x, F);
  if (!x.is_meta()) {
    with_element_type(x.scalar_type(), [&](auto zero) {
      using scalar_t = decltype(zero);
      swiglu_rows(h.const_data_ptr<scalar_t>(), act.mutable_data_ptr<scalar_t>(), x.size(0), F);
    });
  }
  product_out(y, factor(act, fp8, kForward, kRow), factor(w2, fp8, kForward, kRow).t());
  return {y, h};
}

std::tuple<Tensor, Tensor, Tensor> allocate_gradients(const Tensor& x, const Tensor& w13, const Tensor& w2) {
  Tensor dx = at::empty_like(x);
  KindScope scope(Kind::gradients);
  return {dx, at::empty_like(w13), at::empty_like(w2)};
}

// Returns dx, dw13, dw2. An h that was kept is overwritten with its gradient; if `kept` is empty, h is
// recomputed.
std::tuple<Tensor, Tensor, Tensor> block_backward(const Tensor& dy, const Tensor& x, const Tensor& w13,
                                                  const Tensor& w2, const Tensor& kept, bool fp8) {
  const int64_t F = w2.size(1);
  const Tensor h = kept.dim() == 2 ? kept : pre_activation(x, w13, fp8);
  auto gradients = allocate_gradients(x, w13, w2);
  auto& [dx, dw13, dw2] = gradients;
  Tensor act = hidden(x, F);
  product_out(act, factor(dy, fp8, kGradient, kRow), factor(w2, fp8, kForward, kColumn));
  if (!x.is_meta()) {
    with_element_type(x.scalar_type(), [&](auto zero) {
      using scalar_t = decltype(zero);
      swiglu_backward_rows(h.mutable_data_ptr<scalar_t>(), act.mutable_data_ptr<scalar_t>(), nullptr, nullptr,
                           x.size(0), F);
    });
  }
  product_out(dw2, factor(dy, fp8, kGradient, kColumn).t(), factor(act, fp8, kForward, kColumn));
  product_out(dw13, factor(h, fp8, kGradient, kColumn).t(), factor(x, fp8, kForward, kColumn));
  product_out(dx, factor(h, fp8, kGradient, kRow), factor(w13, fp8, kForward, kColumn));
  return gradients;
}

// While meta stands for CUDA: allocates what the functions of kernels/moe/dense_block_cuda.cpp do, in their
// order.
Tensor product_on_cuda(Kind kind, const Tensor& a, Fp8Format format, const Tensor& b, bool fp8) {
  const KindScope scope(kind);
  return fp8 ? fp8_mm(a, format, b) : at::mm(a, b);
}

std::tuple<Tensor, Tensor> forward_meta(const Tensor& x, const Tensor& w13, const Tensor& w2, bool fp8) {
  if (!meta_is_cuda()) return block_forward(x, w13, w2, fp8);
  check(x, w13, w2);
  const Tensor h = product_on_cuda(Kind::activation_experts, x, kForward, w13.t(), fp8),
               act = hidden(x, w2.size(1));
  return {product_on_cuda(KindScope::current(), act, kForward, w2.t(), fp8), h};
}

std::tuple<Tensor, Tensor, Tensor> backward_meta(const Tensor& dy, const Tensor& x, const Tensor& w13,
                                                 const Tensor& w2, const Tensor& kept, bool fp8) {
  if (!meta_is_cuda()) return block_backward(dy, x, w13, w2, kept, fp8);
  constexpr auto rows = Kind::activation_experts, weights = Kind::gradients;
  const Tensor h = kept.dim() == 2 ? kept : product_on_cuda(rows, x, kForward, w13.t(), fp8),
               act = product_on_cuda(rows, dy, kGradient, w2, fp8);
  return {product_on_cuda(KindScope::current(), h, kGradient, w13, fp8),
          product_on_cuda(weights, h.t(), kGradient, x, fp8),
          product_on_cuda(weights, dy.t(), kGradient, act, fp8)};
}

struct DenseBlockFunction : Differentiable<DenseBlockFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& w13,
                        const Tensor& w2, bool fp8, bool keep_hidden) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [y, h] =
        operator_handle<decltype(block_forward)>("moelab::dense_block_forward").call(x, w13, w2, fp8);
    ctx->save_for_backward({x, w13, w2, keep_hidden ? h : at::empty({0}, x.options())});
    ctx->saved_data["fp8"] = fp8;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list dy) {
    const auto saved = ctx->get_saved_variables();
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [dx, dw13, dw2] = operator_handle<decltype(block_backward)>("moelab::dense_block_backward")
                               .call(dy[0].contiguous(), saved[0], saved[1], saved[2], saved[3],
                                     ctx->saved_data["fp8"].toBool());
    saved[3].unsafeGetTensorImpl()->bump_version();  // h is gone: a second backward must not use it
    return {dx, dw13, dw2, Tensor(), Tensor()};
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def("dense_block_forward(Tensor x, Tensor w13, Tensor w2, bool fp8) -> (Tensor, Tensor)");
  m.def(
      "dense_block_backward(Tensor dy, Tensor x, Tensor w13, Tensor w2, Tensor(a!) h, bool fp8) -> (Tensor, "
      "Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("dense_block_forward", block_forward);
  m.impl("dense_block_backward", block_backward);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("dense_block_forward", forward_meta);
  m.impl("dense_block_backward", backward_meta);
}

Tensor dense_block(const Tensor& x, const Tensor& w13, const Tensor& w2, bool fp8, bool keep_hidden) {
  return DenseBlockFunction::apply(x, w13, w2, fp8, keep_hidden);
}

}  // namespace moelab
