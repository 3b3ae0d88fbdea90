#pragma once
#include <ATen/core/Tensor.h>
#include <optional>

// The router of a mixture-of-experts layer: scores, choice of experts, weights and both losses in one
// operator. Axes: T tokens (whole sequences of S, one after another), D width, E experts, K choices a token,
// B = T / S.
namespace moelab {

enum class RouterScore { softmax, sigmoid };
enum class RouterChoice {
  token,   // each token takes its K best experts (ties: the lower expert)
  expert,  // each expert takes its `capacity` best tokens of each sequence (ties: the earlier token); K = E
};

struct RouterOptions {
  RouterScore score = RouterScore::softmax;
  RouterChoice choice = RouterChoice::token;
  int64_t top_k = 2;
  bool normalise = true;  // the chosen weights of a token sum to 1
  int64_t sequence = 1;   // S; the balance loss is taken per sequence and averaged
  int64_t capacity = 0;   // for expert choice: tokens per expert and sequence
  // (B, S) int32 on x's device, or undefined. Tokens where it is negative are padding: sent to no expert (ids
  // -1) and counted in neither losses nor load. In the losses a sequence weighs by its other tokens. Not with
  // expert choice.
  at::Tensor documents = {};
};

struct RouterOutput {
  at::Tensor ids_TK;      // int32; -1: not chosen (expert choice), or padding
  at::Tensor weights_TK;  // fp32, differentiable; 0 where not chosen
  at::Tensor
      balance_loss;  // () fp32, differentiable: mean over sequences of E * sum_e f_e P_e (Fedus 2021, eq. 4),
                     // f_e the share of routes and P_e the mean normalised score of expert e; 1 when even
  at::Tensor z_loss;  // () fp32, differentiable: mean of logsumexp(logits)^2 (Zoph 2022, eq. 5)
  at::Tensor load_E;  // fp32, routes sent to each expert before any drop
};

// x_TD fp32, bf16 or fp16; w_ED fp32 (logits are computed in fp32 in any case); both contiguous. bias_E fp32
// is added to the scores for the choice only (DeepSeek-V3, section 2.1.2). With `replay_TK` (int32) the
// choice is taken from there: recomputation passes the ids of the first forward, because a near tie may fall
// the other way. Saved for backward: x, w, the logits (T, E), lse (T), the ids and the shares of routes.
RouterOutput route(const at::Tensor& x_TD, const at::Tensor& w_ED, const std::optional<at::Tensor>& bias_E,
                   const std::optional<at::Tensor>& replay_TK, const RouterOptions& options);

}  // namespace moelab
