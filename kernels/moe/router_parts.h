#pragma once
#include <ATen/ATen.h>

#include <optional>
#include <tuple>

#include "kernels/moe/router_shape.h"

// What the router's CPU, CUDA and Meta sides share. Axes: T tokens, D width, E experts, K choices a token,
// B sequences of S tokens.
namespace moelab::router_detail {

// logits_TE, lse_T, ids_TK, weights_TK, fraction_BE, balance, z, load_E
using Forward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                           at::Tensor>;

struct Shape {
  int64_t T, D, E, K, S, B;
  Shape(const at::Tensor& x, const at::Tensor& w, int64_t top_k, int64_t sequence, bool expert_choice)
      : T(x.size(0)),
        D(x.size(1)),
        E(w.size(0)),
        K(expert_choice ? w.size(0) : top_k),
        S(sequence),
        B(sequence > 0 ? T / sequence : 0) {
    TORCH_CHECK(w.size(1) == D && w.scalar_type() == at::kFloat, "router weight must be (E, D) fp32");
    TORCH_CHECK(x.is_contiguous() && w.is_contiguous(), "router: contiguous tensors");
    TORCH_CHECK(S > 0 && T % S == 0, "tokens (", T, ") must be whole sequences of ", S);
    TORCH_CHECK(K >= 1 && K <= E, "top-k ", K, " of ", E, " experts");
  }
};

// The arguments of moelab::router_forward, in the order of its schema.
struct ForwardCall {
  const at::Tensor& x_TD;
  const at::Tensor& w_ED;
  const std::optional<at::Tensor>& bias_E;
  const std::optional<at::Tensor>& replay_TK;
  int64_t top_k;
  bool sigmoid, expert_choice, normalise;
  int64_t sequence, capacity;
  const std::optional<at::Tensor>& documents;

  Shape shape() const { return {x_TD, w_ED, top_k, sequence, expert_choice}; }
};

// The arguments of moelab::router_backward, in the order of its schema.
struct BackwardCall {
  const at::Tensor& dweights_TK;
  const at::Tensor& dbalance;
  const at::Tensor& dz;
  const at::Tensor& x_TD;
  const at::Tensor& w_ED;
  const at::Tensor& logits_TE;
  const at::Tensor& lse_T;
  const at::Tensor& ids_TK;
  const at::Tensor& fraction_BE;
  bool sigmoid, normalise;
  int64_t sequence;
  const std::optional<at::Tensor>& documents;

  Shape shape() const { return {x_TD, w_ED, ids_TK.size(1), sequence, false}; }
};

// dx_TD, dw_ED
using Gradients = std::tuple<at::Tensor, at::Tensor>;

// The operators as the dispatcher calls them; `side` is a device's implementation.
template <Forward (*side)(const ForwardCall&)>
Forward forward_operator(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias,
                         const std::optional<at::Tensor>& replay, int64_t top_k, bool sigmoid,
                         bool expert_choice, bool normalise, int64_t sequence, int64_t capacity,
                         const std::optional<at::Tensor>& documents) {
  return side({x, w, bias, replay, top_k, sigmoid, expert_choice, normalise, sequence, capacity, documents});
}

template <Gradients (*side)(const BackwardCall&)>
Gradients backward_operator(const at::Tensor& dweights, const at::Tensor& dbalance, const at::Tensor& dz,
                            const at::Tensor& x, const at::Tensor& w, const at::Tensor& logits,
                            const at::Tensor& lse, const at::Tensor& ids, const at::Tensor& fraction,
                            bool sigmoid, bool normalise, int64_t sequence,
                            const std::optional<at::Tensor>& documents) {
  return side(
      {dweights, dbalance, dz, x, w, logits, lse, ids, fraction, sigmoid, normalise, sequence, documents});
}

// Not filled, except the ids of a replayed choice.
inline Forward allocate_outputs(const at::Tensor& x, const Shape& s,
                                const std::optional<at::Tensor>& replay) {
  const auto f32 = x.options().dtype(at::kFloat);
  at::Tensor ids = at::empty({s.T, s.K}, f32.dtype(at::kInt));
  if (replay) {
    TORCH_CHECK(replay->sizes() == ids.sizes(), "replayed routing has another shape");
    ids.copy_(*replay);
  }
  return {at::empty({s.T, s.E}, f32), at::empty({s.T}, f32),      ids,
          at::empty({s.T, s.K}, f32), at::empty({s.B, s.E}, f32), at::empty({}, f32),
          at::empty({}, f32),         at::empty({s.E}, f32)};
}

// The rest is for CUDA; it is here because CUDA's Meta side needs it too.

inline cuda::RouterShape cuda_shape(const Shape& s) {
  TORCH_CHECK(s.E <= cuda::kMostExperts, "router: ", s.E, " experts; on CUDA up to ", cuda::kMostExperts);
  return {s.T, s.S, s.E, s.K};
}

// Scratch of cuda::router_forward.
inline at::Tensor cuda_scratch(const at::Tensor& x, const Shape& s) {
  return at::empty({cuda::router_scratch(cuda_shape(s))}, x.options().dtype(at::kDouble));
}

}  // namespace moelab::router_detail
