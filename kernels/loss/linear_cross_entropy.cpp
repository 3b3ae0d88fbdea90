#include "kernels/loss/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "kernels/dense/product.h"
#include "kernels/device/element_of.h"
#include "kernels/loss/linear_cross_entropy_device.h"
#include "kernels/loss/linear_cross_entropy_vector.h"
#include "kernels/loss/split_floats_vector.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/operator/differentiable.h"
#include "kernels/operator/op_handle.h"
#include "kernels/vector/vec.h"
#ifdef MOELAB_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#endif

// Axes: T tokens, R tokens of a chunk, D width, V vocabulary, P parts of the vocabulary.
//
// A chunk's logits are kept transposed, (V, R): the product for dW then reads them in place, a range of the
// vocabulary is contiguous, and softmax runs along the vocabulary with one token per vector lane.
namespace moelab {
namespace {

using at::Tensor;
using cuda::ceil_div;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Size of the slab; a chunk of logits and the slab together stay below 64 MiB.
constexpr int64_t kSlabBytes = int64_t{4} << 20, kGpuSlabBytes = int64_t{12} << 20;

// What the operator returns: loss, dx, dw, dw_lower and divergence of the buffers.
using Results = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// All that forward allocates, in one function for the CPU, CUDA and meta.
struct Buffers {
  int64_t T, D, V, chunk, parts;
  Tensor loss;           // () fp32
  Tensor dx;             // (T, D) as x; undefined when not wanted
  Tensor dw;             // (V, D) as the weight; undefined when not wanted
  Tensor dw_lower;       // (V, D) likewise; if defined: the lower halves of fp32 sums, upper ones in dw
  Tensor logits;         // (V * R) as x: the logits of a chunk, then their gradient
  Tensor slab;           // (rows, D) as x: a part of one chunk's dW; undefined where products go into dw
  Tensor partial_max;    // (P, R) fp32
  Tensor partial_sum;    // (P, R) fp32: sum of exp(logit - partial maximum)
  Tensor token_max;      // (R) fp32
  Tensor token_scale;    // (R) fp32: exp(logit - maximum) times this is the gradient
  Tensor token_target;   // (R) fp32: the gradient at the target
  Tensor row_loss;       // (T) fp64
  Tensor inverse_count;  // () fp64: one over the number of targets

  // Only with a reference.
  Tensor other_logits;    // (V * R) as x
  Tensor other_partial;   // (2, P, R) fp32
  Tensor other_token;     // (4, R) fp32
  Tensor row_divergence;  // (T) fp64
  Tensor divergence;      // () fp32

  Buffers(const Tensor& x, const Tensor& weight, bool needs_dx, bool needs_dw, bool compared)
      : T(x.size(0)),
        D(x.size(1)),
        V(weight.size(0)),
        chunk(linear_cross_entropy_chunk(T, V, static_cast<int64_t>(x.element_size()), on_cuda(x))),
        parts(cross_entropy_parts(V)) {
    const auto fp32 = x.options().dtype(at::kFloat), fp64 = x.options().dtype(at::kDouble);
    const bool one_chunk = T <= chunk;
    const int64_t slab_bytes = on_cuda(x) ? kGpuSlabBytes : kSlabBytes;
    loss = at::empty({}, fp32);
    if (needs_dx) dx = at::empty({T, D}, x.options());
    if (needs_dw) dw = at::empty({V, D}, x.options());
    logits = at::empty({V * chunk}, x.options());
    if (needs_dw && !one_chunk && x.scalar_type() != at::kFloat) {
      dw_lower = at::empty({V, D}, x.options());
      slab =
          at::empty({std::clamp<int64_t>(slab_bytes / (2 * std::max<int64_t>(D, 1)), 1, V), D}, x.options());
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

  Results results() const { return {loss, dx, dw, dw_lower, divergence}; }
};

void check(const Tensor& x, const Tensor& weight, const Tensor& targets,
           const std::optional<Tensor>& gradient_scale) {
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
  const std::optional<Tensor>& x;
  const std::optional<Tensor>& weight;
  double divergence_weight;

  bool given() const { return x.has_value(); }
  void check(const Tensor& like_x, const Tensor& like_weight) const {
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
CrossEntropyChunk chunk_of(const Buffers& b, const Tensor& logits_VR, const Tensor& targets, int64_t first,
                           bool gradient, const Tensor& gradient_factor) {
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

ReferenceChunk reference_chunk_of(const Buffers& b, const Tensor& logits_VR, int64_t first, double weight) {
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
SplitFloats split_floats(const Tensor& upper, const Tensor& lower) {
  return {static_cast<uint16_t*>(upper.data_ptr()), static_cast<uint16_t*>(lower.data_ptr())};
}

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

  // sum += part, or sum = part for the first.
  static void accumulate(const SplitFloats& sum, const Tensor& part, bool first) {
    cpu::add_to_split(sum, part.data_ptr(), cuda::element_of(part), part.numel(), first);
  }

  static void average(const Tensor& rows, const Tensor& inverse_count, Tensor to) {
    const double* row = rows.data_ptr<double>();
    double sum = 0;
    for (int64_t i = 0; i < rows.numel(); ++i) sum += row[i];
    *to.data_ptr<float>() = static_cast<float>(sum * *inverse_count.data_ptr<double>());
  }
};

// dW += (gradient of the logits) x, for one chunk. In 16 bits the product has to be rounded before it is
// added, so it goes through a slab: a whole (V, D) temporary would defeat the chunks.
template <class Backend>
void add_weight_gradient(const Buffers& b, const Tensor& gradient_VR, const Tensor& x_RD, bool first) {
  Tensor dw = b.dw;
  if (!b.slab.defined()) {
    if (first) {
      product_out(dw, gradient_VR, x_RD);
    } else {
      dw.addmm_(gradient_VR, x_RD);
    }
    return;
  }
  for (int64_t v = 0; v < b.V; v += b.slab.size(0)) {
    const int64_t rows = std::min(b.slab.size(0), b.V - v);
    Tensor slab = b.slab.narrow(0, 0, rows);
    product_out(slab, gradient_VR.narrow(0, v, rows), x_RD);
    Backend::accumulate(split_floats(dw, b.dw_lower).from(v * b.D), slab, first);
  }
}

template <class Backend>
Results forward(const Tensor& x, const Tensor& weight, const Tensor& targets, bool needs_dx, bool needs_dw,
                const std::optional<Tensor>& gradient_scale, const std::optional<Tensor>& reference_x,
                const std::optional<Tensor>& reference_weight, double divergence_weight) {
  const KindScope kind(Kind::loss_head);
  const Reference reference{reference_x, reference_weight, divergence_weight};
  check(x, weight, targets, gradient_scale);
  reference.check(x, weight);
  Buffers b(x, weight, needs_dx, needs_dw, reference.given());
  Backend::count_targets(b, targets);
  const Tensor gradient_factor = gradient_scale ? b.inverse_count * *gradient_scale : b.inverse_count;
  if (b.T == 0 && needs_dw) b.dw.zero_();
  for (int64_t first = 0; first < b.T; first += b.chunk) {
    const int64_t R = std::min(b.chunk, b.T - first);
    const Tensor x_RD = x.narrow(0, first, R);
    Tensor logits_VR = b.logits.narrow(0, 0, b.V * R).view({b.V, R});
    product_out(logits_VR, weight, x_RD.t());
    CrossEntropyChunk chunk = chunk_of(b, logits_VR, targets, first, needs_dx || needs_dw, gradient_factor);
    if (reference.given()) {
      Tensor other_VR = b.other_logits.narrow(0, 0, b.V * R).view({b.V, R});
      product_out(other_VR, *reference.weight, reference.x->narrow(0, first, R).t());
      chunk.reference = reference_chunk_of(b, other_VR, first, reference.divergence_weight);
    }
    Backend::softmax(chunk);
    if (needs_dx) {
      Tensor dx_RD = b.dx.narrow(0, first, R);
      product_out(dx_RD, logits_VR.t(), weight);
    }
    if (needs_dw) add_weight_gradient<Backend>(b, logits_VR, x_RD, first == 0);
  }
  Backend::average(b.row_loss, b.inverse_count, b.loss);
  if (reference.given()) Backend::average(b.row_divergence, b.inverse_count, b.divergence);
  return b.results();
}

struct MetaBackend {
  static void accumulate(const SplitFloats&, const Tensor&, bool) {}
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

// gradient *= factor. With `lower` (see Buffers) the fp32 sums are multiplied, and rounded once.
void scale_cpu(Tensor gradient, const Tensor& lower, const Tensor& factor) {
  const float f = *factor.data_ptr<float>();
  if (lower.defined()) {
    return cpu::round_split(split_floats(gradient, lower), cuda::element_of(gradient), gradient.numel(), f);
  }
  if (f == 1) return;
  with_element_type(gradient.scalar_type(), [&](auto zero) {
    scale_elements(gradient.data_ptr<decltype(zero)>(), gradient.numel(), f);
  });
}

void scale_meta(Tensor, const Tensor&, const Tensor&) {}

#ifdef MOELAB_WITH_CUDA
struct CudaBackend {
  static void count_targets(const Buffers& b, const Tensor& targets) {
    const Tensor count = targets.ne(kIgnoredTarget).sum().to(at::kDouble);
    Tensor out = b.inverse_count;
    out.copy_(at::where(count > 0, count.reciprocal(), at::zeros_like(count)));
  }

  static void softmax(const CrossEntropyChunk& chunk) {
    C10_CUDA_CHECK(cuda::cross_entropy_chunk(chunk, c10::cuda::getCurrentCUDAStream()));
  }

  static void accumulate(const SplitFloats& sum, const Tensor& part, bool first) {
    C10_CUDA_CHECK(cuda::add_to_split(sum, part.data_ptr(), cuda::element_of(part), part.numel(), first,
                                      c10::cuda::getCurrentCUDAStream()));
  }

  static void average(const Tensor& rows, const Tensor& inverse_count, Tensor to) {
    to.copy_(rows.sum() * inverse_count);
  }
};

void scale_cuda(Tensor gradient, const Tensor& lower, const Tensor& factor) {
  if (!lower.defined()) {
    gradient.mul_(factor);
    return;
  }
  C10_CUDA_CHECK(cuda::round_split(split_floats(gradient, lower), cuda::element_of(gradient),
                                   gradient.numel(), factor.const_data_ptr<float>(),
                                   c10::cuda::getCurrentCUDAStream()));
}
#endif

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

// `lower` may be undefined.
void call_scale(const Tensor& gradient, const Tensor& lower, const Tensor& factor) {
  static const auto op =
      operator_handle<void(Tensor, const Tensor&, const Tensor&)>("moelab::linear_cross_entropy_scale_");
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.call(gradient, lower, factor);
}

class LinearCrossEntropy : public Differentiable<LinearCrossEntropy> {
 public:
  // Returns {loss}, with a reference {objective, cross entropy, divergence}.
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                               const Tensor& targets, const std::optional<Tensor>& gradient_scale,
                               const ReferenceHead* reference) {
    auto [loss, dx, dw, dw_lower, divergence] = call_forward(
        x, weight, targets, x.requires_grad(), weight.requires_grad(), gradient_scale, reference);
    // Not save_for_backward: these are gradients, which no activation policy should pack.
    ctx->saved_data["dx"] = std::move(dx);
    ctx->saved_data["dw"] = std::move(dw);
    ctx->saved_data["dw_lower"] = std::move(dw_lower);
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
    const Tensor dw_lower = std::move(ctx->saved_data["dw_lower"]).toTensor();
    const auto scale = ctx->saved_data["gradient_scale"].toOptional<Tensor>();
    ctx->saved_data.clear();
    const Tensor rest = scale ? gradients[0] / scale->to(gradients[0].scalar_type()) : gradients[0];
    if (dx.defined()) call_scale(dx, {}, rest);
    if (dw.defined()) call_scale(dw, dw_lower, rest);
    return {std::move(dx), std::move(dw), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

int64_t linear_cross_entropy_chunk(int64_t tokens, int64_t vocabulary, int64_t element_size, bool gpu) {
  constexpr int64_t kMultiple = 16;
  const int64_t bytes = logit_chunk_bytes(gpu);
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
  const auto [loss, dx, dw, dw_lower, divergence] =
      call_forward(x_TD, weight_VD, targets_T, false, false, {}, &reference);
  return {loss.add(divergence, reference.weight), loss, divergence};
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor targets, bool needs_dx, bool needs_dw, "
      "Tensor? gradient_scale, Tensor? reference_x, Tensor? reference_weight, float divergence_weight) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("linear_cross_entropy_scale_(Tensor(a!) gradient, Tensor lower, Tensor factor) -> ()");
}

TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("linear_cross_entropy", &forward<CpuBackend>);
  m.impl("linear_cross_entropy_scale_", &scale_cpu);
}

TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("linear_cross_entropy", &forward_meta);
  m.impl("linear_cross_entropy_scale_", &scale_meta);
}

#ifdef MOELAB_WITH_CUDA
TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("linear_cross_entropy", &forward<CudaBackend>);
  m.impl("linear_cross_entropy_scale_", &scale_cuda);
}
#endif

}  // namespace moelab
