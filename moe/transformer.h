#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <vector>

#include "moe/block.h"
#include "moe/kv_cache.h"
#include "moe/parameter.h"
#include "moe/runner.h"

namespace moelab {

struct TransformerOptions {
  c10::Device device = c10::kCPU;
  c10::ScalarType compute = c10::kFloat;  // fp32, or bf16 or fp16 with fp32 norms and routers
  bool masters = true;                    // keep the fp32 values behind 16-bit weights (training does)
  bool fp8 = false;                       // products inside the blocks in fp8, but routers' and attention's
  uint64_t seed = 1;
  // Called with each parameter once it has its values, before the next is made; it may take its memory away.
  std::function<void(Parameter&)> made = {};
};

struct LossParts {
  at::Tensor cross_entropy;  // () fp32, mean over the batch, nats
  at::Tensor balance_loss;   // () fp32, mean over the layers, unweighted
  at::Tensor z_loss;         // () fp32, likewise
};

// A decoder-only transformer of mixtures of experts (or dense): embedding -> N x [attention, MoE] -> norm ->
// head. Weights start as normal(0, 0.02), those that write to the residual stream divided by sqrt(2 *
// layers); each is a function of (seed, its name) alone.
class Transformer {
 public:
  Transformer(const ModelSettings& model, const AttentionSettings& attention,
              const TransformerOptions& options);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  // tokens, targets (B, S) int64; a target of -1 is left out of the mean. In training the settings' dispatch
  // is used and routing is counted; otherwise the model is dropless. `loss_scale` is what backward multiplies
  // the loss with, for linear_cross_entropy, which computes gradients at once; the losses are unscaled.
  LossParts forward(const at::Tensor& tokens_BS, const at::Tensor& targets_BS, bool training,
                    BlockRunner& runner, double loss_scale = 1);

  // Logits (B, S, V) in the compute type, for short texts: the whole tensor is made.
  at::Tensor logits(const at::Tensor& tokens_BS, BlockRunner& runner);

  // Logits (B, V) in the compute type for the token after the last of tokens (B, S), which stand behind the
  // positions that the cache holds and are added to it: a prompt, whole or in pieces, then a token at a time.
  // Dropless, so that no token's fate depends on the others'; without gradients.
  at::Tensor next_logits(const at::Tensor& tokens_BS, KvCache& cache, BlockRunner& runner);

  // balance_loss and z_loss with the settings' weights added to the cross entropy: what training minimises.
  at::Tensor objective(const LossParts& parts) const;

  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // State that no gradient moves (the sigmoid router's biases), by name, for checkpoints.
  struct Buffer {
    std::string name;
    at::Tensor tensor;
  };
  const std::vector<Buffer>& buffers() const { return buffers_; }

  // Routing since the last reset, one entry a layer (empty tensors in a dense model).
  const std::vector<RoutingStats>& routing_stats() const { return stats_; }
  void reset_routing_stats();
  // Moves the sigmoid router's biases by the loads counted since the last reset; nothing for other routers.
  void update_router_biases();

  const ModelSettings& settings() const { return model_; }
  c10::Device device() const { return options_.device; }

 private:
  struct Hidden {
    at::Tensor x_BSD, balance_loss, z_loss;
  };
  Hidden hidden(const at::Tensor& tokens_BS, bool training, BlockRunner& runner, KvCache* cache = nullptr);
  at::Tensor add_matrix(const std::string& name, std::vector<int64_t> shape, double deviation,
                        bool expert = false, int64_t heads = 0, int64_t head_rows = 0);
  at::Tensor add_fp32(const std::string& name, std::vector<int64_t> shape, double deviation, double mean);
  void add_block(int64_t layer);
  void add_feed_forward(const std::string& prefix, MoeWeights& weights, double residual);
  const at::Tensor& rope(int64_t sequence);

  ModelSettings model_;
  AttentionSettings attention_;
  TransformerOptions options_;
  std::vector<Parameter> parameters_;
  std::vector<Buffer> buffers_;
  at::Tensor embedding_VD_, head_VD_;  // (V, D) compute; the same tensor when tied
  at::Tensor final_norm_D_;            // (D) fp32
  std::vector<BlockWeights> blocks_;
  std::vector<RoutingStats> stats_;
  at::Tensor rope_;  // table of the last sequence length
};

}  // namespace moelab
