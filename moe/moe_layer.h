#pragma once
#include <ATen/core/Tensor.h>

#include "moe/reducer.h"
#include "moe/routing_state.h"
#include "moe/settings/model_settings.h"
#include "moe/token_exchange.h"

namespace moelab {

// Axes: T tokens (whole sequences of S), D width, E experts, F expert width, X shared experts.
// "compute": the model's compute type, fp32, bf16 or fp16.
struct MoeWeights {
  at::Tensor router_ED;     // (E, D) fp32
  at::Tensor bias_E;        // (E) fp32, sigmoid router only; moved by next_router_bias, not by gradients
  at::Tensor w13_E2FD;      // (E, 2F, D) compute; gate rows, then up rows; with an exchange this rank's E / N
  at::Tensor w2_EDF;        // (E, D, F) compute; likewise
  at::Tensor shared13_2FD;  // (2XF, D) compute; undefined without shared experts. Of a dense model: (2F, D)
  at::Tensor shared2_DF;    // (D, XF) compute; of a dense model (D, F)
  bool fp8 = false;  // products with these weights, except the router's, are in fp8 (kernels/dense/fp8.h)
};

struct MoeOutput {
  at::Tensor y_TD;
  at::Tensor balance_loss;  // () fp32; 0 in a dense model
  at::Tensor z_loss;        // () fp32
};

// What an MoE layer takes besides its input and its weights.
struct MoeContext {
  const ModelSettings& settings;
  int64_t sequence;               // S
  bool training;                  // dispatch as the settings say; otherwise dropless
  RoutingStats* stats = nullptr;  // counts routing, unless it is replayed; null: no counting
  bool keep_hidden = true;        // as for expert_block; the one-hot dispatch always keeps it
  at::Tensor documents = {};      // as Documents', on x's device
  Reducer reducer = {};           // of ranks that have a slice of F each
  // Of ranks that have tokens of their own and some of the experts each; null: all experts are here. Excludes
  // the one-hot dispatch. Must live as long as the results' backward passes.
  const TokenExchange* exchange = nullptr;
};

// router -> dispatch -> experts -> combine. Expert choice keeps its capacity, which defines it, outside
// training too. `routing` is filled, or replayed if it is filled already. Documents that share a row share
// its capacity, and balance is counted over the row.
MoeOutput moe_layer(const at::Tensor& x_TD, const MoeWeights& weights, const MoeContext& context,
                    RoutingState& routing);

// The auxiliary-loss-free balancing of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2): after each step the
// bias of an overloaded expert is lowered by `rate`, that of an underloaded one raised.
at::Tensor next_router_bias(const at::Tensor& bias_E, const at::Tensor& load_E, double rate = 1e-3);

}  // namespace moelab
