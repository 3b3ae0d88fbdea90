#include "kernels/loss/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "kernels/dense/product.h"
#include "kernels/device/element_of.h"
#include "kernels/loss/linear_cross_entropy_parts.h"
#include "kernels/loss/linear_cross_entropy_vector.h"
#include "kernels/loss/split_floats_vector.h"
#include "kernels/memory/ledger.h"
#include "kernels/operator/differentiable.h"
#include "kernels/operator/op_handle.h"
#include "kernels/vector/vec.h"

// Axes: T tokens, R tokens of a chunk, D width, V vocabulary.
namespace moelab {
namespace {

using at::Tensor;
using cuda::ceil_div;
using namespace linear_cross_entropy_detail;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct CpuBackend {
  static void count_targets(const Buffers& b, const Tensor& targets) {
    const int64_t* t = targets.data_ptr<int64_t>();
    int64_t count = 0;
    for (int64_t i = 0; i < b.T; ++i) {
      TORCH_CHECK(t[i] >= kIgnoredTarget && t[i] < b.V, "linear_cross_entropy: target ", t[i], " of token ",
                  i, " is neither -1 nor in [0, ", b.V, ")");
      count += t[i] != kIgnoredTarget;
    }
    *b.inverse_count.data_ptr<double>() = count > 0 ? 1.0 / static_cast<double>(count) : 0;
  }

  static void softmax(const CrossEntropyChunk& chunk) { cpu::cross_entropy_chunk(chunk); }

  static void add_to_sums(const Buffers& b, const Tensor& gradient_VR, const Tensor& x_RD, bool first) {
    add_by_slabs(b.slab, gradient_VR, x_RD, [&](int64_t v, const Tensor& rows) {
      cpu::add_to_split(split_floats(b.dw, b.dw_rest).from(v * b.D), rows.data_ptr(), cuda::element_of(rows),
                        rows.numel(), first);
    });
  }

  static void average(const Tensor& rows, const Tensor& inverse_count, Tensor to) {
    const double* row = rows.data_ptr<double>();
    double sum = 0;
    for (int64_t i = 0; i < rows.numel(); ++i) sum += row[i];
    *to.data_ptr<float>() = static_cast<float>(sum * *inverse_count.data_ptr<double>());
  }
};

// Stands for the CPU: CUDA's products allocate nothing.
struct MetaBackend {
  static void add_to_sums(const Buffers& b, const Tensor& gradient_VR, const Tensor& x_RD, bool) {
    add_by_slabs(b.slab, gradient_VR, x_RD, [](int64_t, const Tensor&) {});
  }
};

// Allocates and frees what the products of forward's first chunk do, which is the largest.
void count_products(const Buffers& b, const Tensor& x, const Tensor& weight, const Reference& reference) {
  const int64_t R = std::min(b.chunk, b.T);
  const Tensor x_RD = x.narrow(0, 0, R), logits_VR = b.logits.narrow(0, 0, b.V * R).view({b.V, R});
  product_out(logits_VR, weight, x_RD.t());
  if (reference.given()) product_out(logits_VR, *reference.weight, reference.x->narrow(0, 0, R).t());
  if (b.dx.defined()) product_out(b.dx.narrow(0, 0, R), logits_VR.t(), weight);
  if (b.dw.defined()) add_weight_gradient<MetaBackend>(b, logits_VR, x_RD, true);
}

Results forward_meta(const Tensor& x, const Tensor& weight, const Tensor& targets, bool needs_dx,
                     bool needs_dw, const std::optional<Tensor>& gradient_scale,
                     const std::optional<Tensor>& reference_x, const std::optional<Tensor>& reference_weight,
                     double divergence_weight) {
  const KindScope kind(Kind::loss_head);
  const Reference reference{reference_x, reference_weight, divergence_weight};
  check(x, weight, targets, gradient_scale);
  reference.check(x, weight);
  const Buffers b(x, weight, needs_dx, needs_dw, reference.given());
  if (b.T > 0 && multiplies_as_fp32(x)) count_products(b, x, weight, reference);
  return b.results();
}

template <class T>
void scale_elements(T* p, int64_t n, float factor) {
  at::parallel_for(0, n, 16384, [&](int64_t begin, int64_t end) {
    for_each_vector(end - begin, [&](int64_t i, int64_t count) {
      store_float(p + begin + i, load_float(p + begin + i, count) * Vec(factor), count);
    });
  });
}

// gradient *= factor. With `rest` (dw_rest of Buffers) the fp32 sums are multiplied, and rounded once.
void scale_cpu(Tensor gradient, const Tensor& rest, const Tensor& factor) {
  const float f = *factor.data_ptr<float>();
  if (rest.defined()) {
    return cpu::round_split(split_floats(gradient, rest), cuda::element_of(gradient), gradient.numel(), f);
  }
  if (f == 1) return;
  with_element_type(gradient.scalar_type(), [&](auto zero) {
    scale_elements(gradient.data_ptr<decltype(zero)>(), gradient.numel(), f);
  });
}

void scale_meta(Tensor, const Tensor&, const Tensor&) {}

using ForwardSignature = Results(const Tensor&, const Tensor&, const Tensor&, bool, bool,
                                 const std::optional<Tensor>&, const std::optional<Tensor>&,
                                 const std::optional<Tensor>&, double);

// `reference` may be null.
Results call_forward(const Tensor& x, const Tensor& weight, const Tensor& targets, bool needs_dx,
                     bool needs_dw, const std::optional<Tensor>& gradient_scale,
                     const ReferenceHead* reference) {
  static const auto op = operator_handle<ForwardSignature>("moelab::linear_cross_entropy");
  const at::AutoDispatchBelowADInplaceOrView guard;
  std::optional<Tensor> other_x, other_weight;
  if (reference) other_x = reference->x_TD, other_weight = reference->weight_VD;
  return op.call(x, weight, targets, needs_dx, needs_dw, gradient_scale, other_x, other_weight,
                 reference ? reference->weight : 0);
}

// `rest` may be undefined.
void call_scale(const Tensor& gradient, const Tensor& rest, const Tensor& factor) {
  static const auto op =
      operator_handle<void(Tensor, const Tensor&, const Tensor&)>("moelab::linear_cross_entropy_scale_");
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.call(gradient, rest, factor);
}

class LinearCrossEntropy : public Differentiable<LinearCrossEntropy> {
 public:
  // Returns {loss}, with a reference {objective, cross entropy, divergence}.
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                               const Tensor& targets, const std::optional<Tensor>& gradient_scale,
                               const ReferenceHead* reference) {
    auto [loss, dx, dw, dw_rest, divergence] = call_forward(
        x, weight, targets, x.requires_grad(), weight.requires_grad(), gradient_scale, reference);
    // Not save_for_backward: these are gradients, which no activation policy should pack.
    ctx->saved_data["dx"] = std::move(dx);
    ctx->saved_data["dw"] = std::move(dw);
    ctx->saved_data["dw_rest"] = std::move(dw_rest);
    ctx->saved_data["gradient_scale"] = gradient_scale;
    if (!reference) return {loss};
    ctx->mark_non_differentiable({loss, divergence});
    ctx->set_materialize_grads(false);
    return {loss.add(divergence, reference->weight), loss, divergence};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const KindScope kind(Kind::loss_head);
    TORCH_CHECK(ctx->saved_data.count("dx") == 1,
                "linear_cross_entropy: a second backward through the same loss");
    // Handed over, so that AccumulateGrad can take them without a copy and each is freed as soon as it is
    // used.
    Tensor dx = std::move(ctx->saved_data["dx"]).toTensor();
    Tensor dw = std::move(ctx->saved_data["dw"]).toTensor();
    const Tensor dw_rest = std::move(ctx->saved_data["dw_rest"]).toTensor();
    const auto scale = ctx->saved_data["gradient_scale"].toOptional<Tensor>();
    ctx->saved_data.clear();
    const Tensor factor = scale ? gradients[0] / scale->to(gradients[0].scalar_type()) : gradients[0];
    if (dx.defined()) call_scale(dx, {}, factor);
    if (dw.defined()) call_scale(dw, dw_rest, factor);
    return {std::move(dx), std::move(dw), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

int64_t linear_cross_entropy_chunk(int64_t tokens, int64_t vocabulary, int64_t element_size, bool gpu,
                                   int64_t width) {
  constexpr int64_t kMultiple = 16;
  const int64_t bytes = logit_chunk_bytes(gpu, vocabulary * width * element_size);
  const int64_t fitting = bytes / (vocabulary * element_size) / kMultiple * kMultiple;
  const int64_t most = std::max(fitting, kMultiple);
  if (tokens <= most) return tokens;
  return ceil_div(ceil_div(tokens, ceil_div(tokens, most)), kMultiple) * kMultiple;
}

Tensor linear_cross_entropy(const Tensor& x_TD, const Tensor& weight_VD, const Tensor& targets_T,
                            const std::optional<Tensor>& gradient_scale) {
  if (at::GradMode::is_enabled() && (x_TD.requires_grad() || weight_VD.requires_grad())) {
    const ReferenceHead* const none = nullptr;
    return LinearCrossEntropy::apply(x_TD, weight_VD, targets_T, gradient_scale, none)[0];
  }
  return std::get<0>(call_forward(x_TD, weight_VD, targets_T, false, false, {}, nullptr));
}

ComparedLoss compared_cross_entropy(const Tensor& x_TD, const Tensor& weight_VD, const Tensor& targets_T,
                                    const ReferenceHead& reference,
                                    const std::optional<Tensor>& gradient_scale) {
  if (at::GradMode::is_enabled() && (x_TD.requires_grad() || weight_VD.requires_grad())) {
    const variable_list parts =
        LinearCrossEntropy::apply(x_TD, weight_VD, targets_T, gradient_scale, &reference);
    return {parts[0], parts[1], parts[2]};
  }
  const auto [loss, dx, dw, dw_rest, divergence] =
      call_forward(x_TD, weight_VD, targets_T, false, false, {}, &reference);
  return {loss.add(divergence, reference.weight), loss, divergence};
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor targets, bool needs_dx, bool needs_dw, "
      "Tensor? gradient_scale, Tensor? reference_x, Tensor? reference_weight, float divergence_weight) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("linear_cross_entropy_scale_(Tensor(a!) gradient, Tensor rest, Tensor factor) -> ()");
}

TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("linear_cross_entropy", &forward<CpuBackend>);
  m.impl("linear_cross_entropy_scale_", &scale_cpu);
}

TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("linear_cross_entropy", &forward_meta);
  m.impl("linear_cross_entropy_scale_", &scale_meta);
}

}  // namespace moelab
