#include "moe/moe_layer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <functional>

#include "kernels/memory/ledger.h"
#include "kernels/moe/expert_block.h"
#include "kernels/moe/router.h"
#include "moe/onehot.h"

// Axes: T tokens, D width, K choices a token, E experts.
namespace moelab {
namespace {

int64_t capacity(const MoeContext& context) {
  const ModelSettings& m = context.settings;
  return expert_capacity(context.sequence, m.experts_per_token, m.experts, m.capacity_factor);
}

RouterOptions router_options(const MoeContext& context) {
  const ModelSettings& m = context.settings;
  RouterOptions options;
  options.score = m.router == RouterKind::sigmoid ? RouterScore::sigmoid : RouterScore::softmax;
  options.choice = m.router == RouterKind::expert_choice ? RouterChoice::expert : RouterChoice::token;
  options.top_k = m.experts_per_token;
  options.normalise = m.norm_topk && m.router != RouterKind::expert_choice;
  options.sequence = context.sequence;
  options.capacity = capacity(context);
  options.documents = context.documents;
  return options;
}

Routes dispatch(const at::Tensor& ids_TK, const MoeContext& context) {
  const ModelSettings& m = context.settings;
  const bool dropless =
      m.router != RouterKind::expert_choice && (!context.training || m.dispatch == Dispatch::dropless);
  if (dropless) return dropless_routes(ids_TK, m.experts);
  return capacity_routes(ids_TK, m.experts, context.sequence, capacity(context));
}

void add_to(RoutingStats& stats, const RouterOutput& routed, const Routes& routes) {
  if (!stats.load_E.defined()) {
    KindScope kind(Kind::routing);
    stats = {at::zeros_like(routed.load_E), at::zeros_like(routes.dropped)};
  }
  stats.load_E.add_(routed.load_E);
  stats.dropped.add_(routes.dropped);
}

// The experts' outputs, weighted and summed. Runs `meanwhile` while rows travel to other ranks, or
// afterwards.
at::Tensor expert_part(const at::Tensor& x_TD, const at::Tensor& weights_TK, const Routes& routes,
                       const MoeWeights& w, const MoeContext& context,
                       const std::function<void()>& meanwhile) {
  at::Tensor y;
  const bool onehot = context.training && context.settings.dispatch == Dispatch::onehot;
  if (context.exchange) {
    TORCH_CHECK(!onehot, "the one-hot dispatch needs all experts on one rank");
    const auto rows = context.exchange->send(x_TD, routes);
    meanwhile();
    return context.exchange->experts(rows, x_TD, weights_TK, routes, w.w13_E2FD, w.w2_EDF, w.fp8,
                                     context.keep_hidden);
  }
  if (onehot) {
    y = onehot_experts(x_TD, weights_TK, routes, w.w13_E2FD, w.w2_EDF, context.sequence);
  } else {
    y = expert_block(x_TD, weights_TK, routes, w.w13_E2FD, w.w2_EDF, w.fp8, context.keep_hidden);
  }
  meanwhile();
  return y;
}

at::Tensor dense_part(const at::Tensor& entered_TD, const MoeWeights& w, const MoeContext& context) {
  return dense_block(entered_TD, w.shared13_2FD, w.shared2_DF, w.fp8, context.keep_hidden);
}

MoeOutput dense_layer(const at::Tensor& x_TD, const MoeWeights& w, const MoeContext& context) {
  const at::Tensor none = at::zeros({}, x_TD.options().dtype(at::kFloat));
  return {context.reducer.leave(dense_part(context.reducer.enter(x_TD), w, context)), none, none};
}

}  // namespace

MoeOutput moe_layer(const at::Tensor& x_TD, const MoeWeights& w, const MoeContext& context,
                    RoutingState& routing) {
  const ModelSettings& m = context.settings;
  if (m.dense()) return dense_layer(x_TD, w, context);
  const bool replaying = routing.filled();
  const auto bias = w.bias_E.defined() ? std::optional(w.bias_E) : std::nullopt;
  const auto replay = replaying ? std::optional(routing.ids_TK) : std::nullopt;
  const RouterOutput routed = route(x_TD, w.router_ED, bias, replay, router_options(context));
  if (!replaying) {
    routing = {routed.ids_TK, dispatch(routed.ids_TK, context)};
    if (context.stats) add_to(*context.stats, routed, routing.routes);
  }
  // Every rank routes all tokens. Its experts' slices give a part of the gradient of the router weights too.
  const at::Tensor in_TD = context.reducer.enter(x_TD), weights_TK = context.reducer.enter(routed.weights_TK);
  at::Tensor shared;
  at::Tensor y = expert_part(in_TD, weights_TK, routing.routes, w, context, [&] {
    if (w.shared13_2FD.defined()) shared = dense_part(in_TD, w, context);
  });
  if (shared.defined()) y = y.add(shared);
  return {context.reducer.leave(y), routed.balance_loss, routed.z_loss};
}

at::Tensor next_router_bias(const at::Tensor& bias_E, const at::Tensor& load_E, double rate) {
  at::NoGradGuard no_grad;
  return load_E.mean().sub(load_E).sign_().mul_(rate).add_(bias_E);
}

}  // namespace moelab
