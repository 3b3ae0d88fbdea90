#include "kernels/moe/router.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/moe/router_cpu.h"
#include "kernels/moe/router_gpu_products.h"
#include "kernels/moe/router_parts.h"
#include "kernels/operator/differentiable.h"
#include "kernels/operator/op_handle.h"

// Axes: T tokens, D width, E experts, K choices a token, B sequences of S tokens.
namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using namespace router_detail;

// Allocates what choose_for_experts_cuda (router_cuda.cpp) does: scores, and the buffers of LibTorch's stable
// sort. Beyond 4096 tokens it sorts a copy in which each expert's scores are contiguous. scratch_bytes: CUB's
// scratch per score.
void choose_for_experts_cuda_meta(const Tensor& logits, const Shape& s) {
  const auto like_logits = [&](at::ScalarType type) { return at::empty_like(logits, type); };
  const Tensor scores = like_logits(at::kFloat), values = like_logits(at::kFloat),
               order = like_logits(at::kLong);
  if (s.S <= 4096) return;
  const Tensor copy = like_logits(at::kFloat), sorted = like_logits(at::kFloat),
               places = like_logits(at::kLong);
  const int64_t scratch_bytes = s.B * s.E < 128 ? 32 : 20;  // one sort for all experts, or one for each
  at::empty({scratch_bytes, logits.numel()}, logits.options().dtype(at::kByte));
}

Forward forward_meta(const ForwardCall& call) {
  if (!on_cuda(call.x_TD)) return router_forward_cpu(call);
  const Shape s = call.shape();
  KindScope kind(Kind::routing);
  auto outputs = allocate_outputs(call.x_TD, s, call.replay_TK);
  if (s.T == 0) return outputs;
  router_logits(call.x_TD, call.w_ED, std::get<0>(outputs));
  if (call.expert_choice && !call.replay_TK) choose_for_experts_cuda_meta(std::get<0>(outputs), s);
  cuda_scratch(call.x_TD, s);
  return outputs;
}

Gradients backward_meta(const BackwardCall& call) {
  if (!on_cuda(call.x_TD)) return router_backward_cpu(call);
  KindScope kind(Kind::routing);
  Tensor dx = at::empty_like(call.x_TD), dw = at::empty_like(call.w_ED),
         dlogits = at::empty_like(call.logits_TE);
  const Tensor counted = call.documents ? call.documents->ge(0).sum() : Tensor();
  router_gradients(call.x_TD, call.w_ED, dlogits, dx, dw);
  return {dx, dw};
}

struct RouterFunction : Differentiable<RouterFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                                                const Tensor& w, const OptionalTensor& bias,
                                                const OptionalTensor& replay, const RouterOptions& options) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const bool sigmoid = options.score == RouterScore::sigmoid;
    const auto documents = options.documents.defined() ? OptionalTensor(options.documents) : std::nullopt;
    auto [logits, lse, ids, weights, fraction, balance, z, load] =
        operator_handle<decltype(forward_operator<router_forward_cpu>)>("moelab::router_forward")
            .call(x, w, bias, replay, options.top_k, sigmoid, options.choice == RouterChoice::expert,
                  options.normalise, options.sequence, options.capacity, documents);
    ctx->save_for_backward({x, w, logits, lse, ids, fraction});
    ctx->saved_data["sigmoid"] = sigmoid;
    ctx->saved_data["normalise"] = options.normalise;
    ctx->saved_data["sequence"] = options.sequence;
    ctx->saved_data["documents"] = documents;
    ctx->mark_non_differentiable({ids, load});
    return {ids, weights, balance, z, load};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [dx, dw] =
        operator_handle<decltype(backward_operator<router_backward_cpu>)>("moelab::router_backward")
            .call(gradients[1].contiguous(), gradients[2], gradients[3], saved[0], saved[1], saved[2],
                  saved[3], saved[4], saved[5], ctx->saved_data["sigmoid"].toBool(),
                  ctx->saved_data["normalise"].toBool(), ctx->saved_data["sequence"].toInt(),
                  ctx->saved_data["documents"].toOptional<Tensor>());
    return {dx, dw, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def(
      "router_forward(Tensor x, Tensor w, Tensor? bias, Tensor? replay, int top_k, bool sigmoid, "
      "bool expert_choice, bool normalise, int sequence, int capacity, Tensor? documents) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "router_backward(Tensor dweights, Tensor dbalance, Tensor dz, Tensor x, Tensor w, Tensor logits, "
      "Tensor lse, Tensor ids, Tensor fraction, bool sigmoid, bool normalise, int sequence, Tensor? "
      "documents) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("router_forward", forward_operator<router_forward_cpu>);
  m.impl("router_backward", backward_operator<router_backward_cpu>);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("router_forward", forward_operator<forward_meta>);
  m.impl("router_backward", backward_operator<backward_meta>);
}

RouterOutput route(const Tensor& x, const Tensor& w, const OptionalTensor& bias, const OptionalTensor& replay,
                   const RouterOptions& options) {
  if (const Tensor& documents = options.documents; documents.defined()) {
    TORCH_CHECK(documents.numel() == x.size(0) && documents.scalar_type() == at::kInt &&
                    documents.device() == x.device() && documents.is_contiguous() &&
                    options.choice == RouterChoice::token,
                "route: documents are one int32 a token, where x is, and not for expert choice");
  }
  auto out = RouterFunction::apply(x, w, bias, replay, options);
  return {out[0], out[1], out[2], out[3], out[4]};
}

}  // namespace moelab
