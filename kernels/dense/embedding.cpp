#include "kernels/dense/embedding.h"

#include "kernels/vector/vec.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>

#include "kernels/dense/embedding_parts.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/operator/differentiable.h"
#include "kernels/operator/op_handle.h"

// Axes: B batch, S sequence, T = B*S tokens, V vocabulary, D width.
namespace moelab {
namespace {

using at::Tensor;
using namespace embedding_detail;

struct BackwardOutputs {
  Tensor dweight;
  Tensor begin, order;  // (V + 1), (T) int64: the positions of id v are order[begin[v] .. begin[v + 1])
  BackwardOutputs(const Tensor& grad, const Tensor& tokens, int64_t vocabulary)
      : dweight(at::empty({vocabulary, grad.size(-1)}, grad.options())),
        begin(at::empty({vocabulary + 1}, tokens.options())),
        order(at::empty({tokens.numel()}, tokens.options())) {}
};

// A counting sort of token positions by id; equal ids keep their order.
void sort_by_id(const Tensor& tokens, Tensor& begin_V1, Tensor& order_T) {
  const int64_t T = tokens.numel(), V = begin_V1.size(0) - 1;
  const int64_t* id = tokens.const_data_ptr<int64_t>();
  int64_t *begin = begin_V1.mutable_data_ptr<int64_t>(), *order = order_T.mutable_data_ptr<int64_t>();
  std::fill_n(begin, V + 1, 0);
  for (int64_t t = 0; t < T; ++t) ++begin[id[t]];
  for (int64_t v = 0, sum = 0; v <= V; ++v) begin[v] = sum += v < V ? begin[v] : 0;  // the end of each id …
  for (int64_t t = T - 1; t >= 0; --t) order[--begin[id[t]]] = t;                    // … moves to its begin
}

Tensor forward_cpu(const Tensor& weight, const Tensor& tokens) {
  Tensor out = empty_output(weight, tokens);
  const int64_t V = weight.size(0);
  const size_t row_bytes = weight.size(1) * weight.element_size();
  const int64_t* id = tokens.const_data_ptr<int64_t>();
  const char* rows = static_cast<const char*>(weight.const_data_ptr());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  at::parallel_for(0, tokens.numel(), at::internal::GRAIN_SIZE / std::max<int64_t>(weight.size(1), 1) + 1,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t t = begin; t < end; ++t) {
                       TORCH_CHECK(id[t] >= 0 && id[t] < V, "embedding: token id ", id[t], " at position ", t,
                                   " is not in 0..", V - 1);
                       std::memcpy(to + t * row_bytes, rows + id[t] * row_bytes, row_bytes);
                     }
                   });
  return out;
}

Tensor forward_meta(const Tensor& weight, const Tensor& tokens) { return empty_output(weight, tokens); }

// Ids differ in frequency, so the work is split by blocks of columns too.
constexpr int64_t kColumns = 64;

Tensor backward_cpu(const Tensor& grad, const Tensor& tokens, int64_t V) {
  BackwardOutputs out(grad, tokens, V);
  sort_by_id(tokens, out.begin, out.order);
  const int64_t D = grad.size(-1), blocks = at::divup(D, kColumns);
  const int64_t *begin = out.begin.const_data_ptr<int64_t>(), *order = out.order.const_data_ptr<int64_t>();
  with_element_type(grad.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* g = grad.const_data_ptr<T>();
    T* dweight = out.dweight.mutable_data_ptr<T>();
    at::parallel_for(0, blocks * V, 256, [&](int64_t first, int64_t last) {
      for (int64_t task = first; task < last; ++task) {
        const int64_t v = task % V, column = task / V * kColumns;
        for_each_vector(std::min(kColumns, D - column), [&](int64_t i, int64_t n) {
          Vec sum(0);
          for (int64_t k = begin[v]; k < begin[v + 1]; ++k)
            sum = sum + load_float(g + order[k] * D + column + i, n);
          store_float(dweight + v * D + column + i, sum, n);
        });
      }
    });
  });
  return out.dweight;
}

// Allocates what backward_cuda (embedding_cuda.cpp) does. For few tokens: an fp32 copy of the terms and their
// fp32 sum. For more: ATen's sorted ids with their positions, and fp32 sums of at most 10 terms each.
Tensor backward_cuda_meta(const Tensor& grad, const Tensor& tokens, int64_t V) {
  const int64_t T = tokens.numel(), D = grad.size(-1);
  const auto fp32 = grad.options().dtype(at::kFloat);
  if (T <= kAddedInPlace) {
    const Tensor terms = grad.to(at::kFloat), sum = at::empty({V, D}, fp32);
    return sum.to(grad.scalar_type());
  }
  const Tensor dweight = at::empty({V, D}, grad.options()), ids = at::empty({2, T}, tokens.options()),
               sums = at::empty({T / 10 + std::min(T, V), (D + 31) / 32 * 32}, fp32);
  return dweight;
}

Tensor backward_meta(const Tensor& grad, const Tensor& tokens, int64_t vocabulary) {
  if (meta_is_cuda()) return backward_cuda_meta(grad, tokens, vocabulary);
  return BackwardOutputs(grad, tokens, vocabulary).dweight;
}

class Embedding : public Differentiable<Embedding> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& weight,
                        const Tensor& tokens) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = operator_handle<Tensor(const Tensor&, const Tensor&)>("moelab::embedding_forward");
    context->save_for_backward({tokens});
    context->saved_data["vocabulary"] = weight.size(0);
    return op.call(weight, tokens);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op =
        operator_handle<Tensor(const Tensor&, const Tensor&, int64_t)>("moelab::embedding_backward");
    const Tensor tokens = context->get_saved_variables()[0];
    at::AutoDispatchBelowADInplaceOrView guard;
    return {op.call(grads[0].contiguous(), tokens, context->saved_data["vocabulary"].toInt()), Tensor()};
  }
};

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& tokens) {
  TORCH_CHECK(weight.dim() == 2 && weight.is_contiguous(), "embedding: weight must be (V, D), contiguous");
  TORCH_CHECK(tokens.scalar_type() == at::kLong, "embedding: tokens must be int64");
  return Embedding::apply(weight, tokens.contiguous());
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def("embedding_forward(Tensor weight, Tensor tokens) -> Tensor");
  m.def("embedding_backward(Tensor grad, Tensor tokens, int vocabulary) -> Tensor");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("embedding_forward", forward_cpu);
  m.impl("embedding_backward", backward_cpu);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("embedding_forward", forward_meta);
  m.impl("embedding_backward", backward_meta);
}

}  // namespace moelab
