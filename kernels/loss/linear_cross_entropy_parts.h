#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "kernels/dense/product.h"
#include "kernels/device/element_of.h"
#include "kernels/loss/cross_entropy_chunk.h"
#include "kernels/loss/linear_cross_entropy.h"
#include "kernels/loss/product_slabs.h"
#include "kernels/loss/split_floats.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"

// What the CPU, CUDA and Meta sides of the head and its cross entropy share. Axes: T tokens, R tokens of a
// chunk, D width, V vocabulary, P parts of the vocabulary.
//
// A chunk's logits are kept transposed, (V, R): the product for dW then reads them in place, a range of the
// vocabulary is contiguous, and softmax runs along the vocabulary with one token per vector lane.
namespace moelab::linear_cross_entropy_detail {

// What the operator returns: loss, dx, dw, dw_rest and divergence of the buffers.
using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// All that forward allocates, in one function for the CPU, CUDA and meta.
struct Buffers {
  int64_t T, D, V, chunk, parts;
  at::Tensor loss;         // () fp32
  at::Tensor dx;           // (T, D) as x; undefined when not wanted
  at::Tensor dw;           // (V, D) as the weight; undefined when not wanted
  at::Tensor dw_rest;      // if defined: dw and this hold fp32 sums until backward rounds them. On the CPU it
                           // has dw's shape and type, and the lower 16 bits of each sum; dw has the upper. On
                           // CUDA it is fp32, with the sums of the last V - V / 2 rows; dw's memory has the
                           // sums of the rows before (first_sums)
  at::Tensor logits;       // (V * R) as x: the logits of a chunk, then their gradient
  at::Tensor slab;         // (rows, D) as x: a part of one chunk's dW; undefined where products go into sums
  at::Tensor partial_max;  // (P, R) fp32
  at::Tensor partial_sum;  // (P, R) fp32: sum of exp(logit - partial maximum)
  at::Tensor token_max;    // (R) fp32
  at::Tensor token_scale;  // (R) fp32: exp(logit - maximum) times this is the gradient
  at::Tensor token_target;   // (R) fp32: the gradient at the target
  at::Tensor row_loss;       // (T) fp64
  at::Tensor inverse_count;  // () fp64: one over the number of targets

  // Only with a reference.
  at::Tensor other_logits;    // (V * R) as x
  at::Tensor other_partial;   // (2, P, R) fp32
  at::Tensor other_token;     // (4, R) fp32
  at::Tensor row_divergence;  // (T) fp64
  at::Tensor divergence;      // () fp32

  Buffers(const at::Tensor& x, const at::Tensor& weight, bool needs_dx, bool needs_dw, bool compared)
      : T(x.size(0)),
        D(x.size(1)),
        V(weight.size(0)),
        chunk(linear_cross_entropy_chunk(T, V, static_cast<int64_t>(x.element_size()), on_cuda(x), D)),
        parts(cross_entropy_parts(V)) {
    const auto fp32 = x.options().dtype(at::kFloat), fp64 = x.options().dtype(at::kDouble);
    const bool one_chunk = T <= chunk;
    loss = at::empty({}, fp32);
    if (needs_dx) dx = at::empty({T, D}, x.options());
    if (needs_dw) dw = at::empty({V, D}, x.options());
    logits = at::empty({V * chunk}, x.options());
    if (needs_dw && !one_chunk && x.scalar_type() != at::kFloat) {
      dw_rest = on_cuda(x) ? at::empty({V - V / 2, D}, fp32) : at::empty({V, D}, x.options());
      if (!on_cuda(x)) slab = product_slab(V, D, x.options());
    }
    partial_max = at::empty({parts, chunk}, fp32);
    partial_sum = at::empty({parts, chunk}, fp32);
    token_max = at::empty({chunk}, fp32);
    token_scale = at::empty({chunk}, fp32);
    token_target = at::empty({chunk}, fp32);
    row_loss = at::empty({T}, fp64);
    inverse_count = at::empty({}, fp64);
    if (!compared) return;
    other_logits = at::empty({V * chunk}, x.options());
    other_partial = at::empty({2, parts, chunk}, fp32);
    other_token = at::empty({4, chunk}, fp32);
    row_divergence = at::empty({T}, fp64);
    divergence = at::empty({}, fp32);
  }

  Results results() const { return {loss, dx, dw, dw_rest, divergence}; }
};

inline void check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                  const std::optional<at::Tensor>& gradient_scale) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 2 && weight.size(1) == x.size(1) && weight.size(0) > 0,
              "linear_cross_entropy: x ", x.sizes(), " and weight ", weight.sizes(),
              " must be (T, D) and (V, D)");
  const auto dtype = x.scalar_type();
  TORCH_CHECK(
      weight.scalar_type() == dtype && (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf),
      "linear_cross_entropy: x and weight must both be fp32, both bf16 or both fp16, not ", dtype, " and ",
      weight.scalar_type());
  TORCH_CHECK(targets.dim() == 1 && targets.size(0) == x.size(0) && targets.scalar_type() == at::kLong,
              "linear_cross_entropy: targets must be (T) int64, not ", targets.sizes(), " ",
              targets.scalar_type());
  TORCH_CHECK(x.is_contiguous() && weight.is_contiguous() && targets.is_contiguous(),
              "linear_cross_entropy: x, weight and targets must be contiguous");
  TORCH_CHECK(
      !gradient_scale || (gradient_scale->dim() == 0 && gradient_scale->scalar_type() == at::kDouble &&
                          gradient_scale->device() == x.device()),
      "linear_cross_entropy: the gradient's scale must be () fp64 where x is");
}

// The reference as operator arguments.
struct Reference {
  const std::optional<at::Tensor>& x;
  const std::optional<at::Tensor>& weight;
  double divergence_weight;

  bool given() const { return x.has_value(); }
  void check(const at::Tensor& like_x, const at::Tensor& like_weight) const {
    if (!given()) return;
    TORCH_CHECK(weight.has_value() && x->dim() == 2 && weight->dim() == 2 && x->size(0) == like_x.size(0) &&
                    weight->size(0) == like_weight.size(0) && weight->size(1) == x->size(1),
                "linear_cross_entropy: the reference's x and weight must be (", like_x.size(0), ", D) and (",
                like_weight.size(0), ", D)");
    TORCH_CHECK(x->scalar_type() == like_x.scalar_type() && weight->scalar_type() == like_x.scalar_type() &&
                    x->is_contiguous() && weight->is_contiguous(),
                "linear_cross_entropy: the reference must be contiguous ", like_x.scalar_type());
  }
};

// What one chunk's softmax works on; the same for the CPU and for CUDA.
inline CrossEntropyChunk chunk_of(const Buffers& b, const at::Tensor& logits_VR, const at::Tensor& targets,
                                  int64_t first, bool gradient, const at::Tensor& gradient_factor) {
  return {.logits = logits_VR.data_ptr(),
          .element = cuda::element_of(logits_VR),
          .gradient = gradient,
          .vocabulary = b.V,
          .tokens = logits_VR.size(1),
          .targets = targets.data_ptr<int64_t>() + first,
          .gradient_factor = gradient_factor.const_data_ptr<double>(),
          .partial_max = b.partial_max.data_ptr<float>(),
          .partial_sum = b.partial_sum.data_ptr<float>(),
          .token_max = b.token_max.data_ptr<float>(),
          .token_scale = b.token_scale.data_ptr<float>(),
          .token_target = b.token_target.data_ptr<float>(),
          .row_loss = b.row_loss.data_ptr<double>() + first};
}

inline ReferenceChunk reference_chunk_of(const Buffers& b, const at::Tensor& logits_VR, int64_t first,
                                         double weight) {
  const auto partial = [&](int64_t i) { return b.other_partial[i].data_ptr<float>(); };
  const auto token = [&](int64_t i) { return b.other_token[i].data_ptr<float>(); };
  return {.logits = logits_VR.data_ptr(),
          .weight = weight,
          .partial_max = partial(0),
          .partial_sum = partial(1),
          .token_inverse_sum = token(0),
          .token_shift = token(1),
          .token_divergence = token(2),
          .token_scale = token(3),
          .row_divergence = b.row_divergence.data_ptr<double>() + first};
}

// From two tensors of 16-bit elements.
inline SplitFloats split_floats(const at::Tensor& upper, const at::Tensor& lower) {
  return {static_cast<uint16_t*>(upper.data_ptr()), static_cast<uint16_t*>(lower.data_ptr())};
}

// dW += (gradient of the logits) x, for one chunk.
template <class Backend>
void add_weight_gradient(const Buffers& b, const at::Tensor& gradient_VR, const at::Tensor& x_RD,
                         bool first) {
  at::Tensor dw = b.dw;
  if (b.dw_rest.defined()) {
    Backend::add_to_sums(b, gradient_VR, x_RD, first);
  } else if (first) {
    product_out(dw, gradient_VR, x_RD);
  } else {
    dw.addmm_(gradient_VR, x_RD);
  }
}

// The operator. Backend has what the CPU and CUDA do each in its own way: count_targets, softmax, add_to_sums
// and average.
template <class Backend>
Results forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets, bool needs_dx,
                bool needs_dw, const std::optional<at::Tensor>& gradient_scale,
                const std::optional<at::Tensor>& reference_x,
                const std::optional<at::Tensor>& reference_weight, double divergence_weight) {
  const KindScope kind(Kind::loss_head);
  const Reference reference{reference_x, reference_weight, divergence_weight};
  check(x, weight, targets, gradient_scale);
  reference.check(x, weight);
  Buffers b(x, weight, needs_dx, needs_dw, reference.given());
  Backend::count_targets(b, targets);
  const at::Tensor gradient_factor = gradient_scale ? b.inverse_count * *gradient_scale : b.inverse_count;
  if (b.T == 0 && needs_dw) b.dw.zero_();
  for (int64_t first = 0; first < b.T; first += b.chunk) {
    const int64_t R = std::min(b.chunk, b.T - first);
    const at::Tensor x_RD = x.narrow(0, first, R);
    at::Tensor logits_VR = b.logits.narrow(0, 0, b.V * R).view({b.V, R});
    product_out(logits_VR, weight, x_RD.t());
    CrossEntropyChunk chunk = chunk_of(b, logits_VR, targets, first, needs_dx || needs_dw, gradient_factor);
    if (reference.given()) {
      at::Tensor other_VR = b.other_logits.narrow(0, 0, b.V * R).view({b.V, R});
      product_out(other_VR, *reference.weight, reference.x->narrow(0, first, R).t());
      chunk.reference = reference_chunk_of(b, other_VR, first, reference.divergence_weight);
    }
    Backend::softmax(chunk);
    if (needs_dx) {
      at::Tensor dx_RD = b.dx.narrow(0, first, R);
      product_out(dx_RD, logits_VR.t(), weight);
    }
    if (needs_dw) add_weight_gradient<Backend>(b, logits_VR, x_RD, first == 0);
  }
  Backend::average(b.row_loss, b.inverse_count, b.loss);
  if (reference.given()) Backend::average(b.row_divergence, b.inverse_count, b.divergence);
  return b.results();
}

}  // namespace moelab::linear_cross_entropy_detail
