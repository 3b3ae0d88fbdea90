#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "kernels/loss/linear_cross_entropy.h"
#include "moe/block.h"
#include "moe/documents.h"
#include "moe/kv_cache.h"
#include "moe/parameter.h"
#include "moe/runner.h"
#include "moe/stage.h"

namespace moelab {

struct TransformerOptions {
  c10::Device device = c10::kCPU;
  c10::ScalarType compute = c10::kFloat;  // fp32, or bf16 or fp16 with fp32 norms and routers
  bool masters = true;                    // keep the fp32 values behind 16-bit weights (training does)
  bool fp8 = false;  // products inside the blocks in fp8, except the router's and attention's
  uint64_t seed = 1;
  int64_t longest_document = std::numeric_limits<int64_t>::max();  // tokens; of documents that share a row
  Stage stage = {};
  // Of ranks that have some of the experts each, in rank order; null: all experts are here. Must outlive the
  // model.
  const TokenExchange* exchange = nullptr;
  // Of ranks that have a slice of each weight (moe/tensor_slice.h); null: weights are whole. Must outlive the
  // model, and all ranks make the same calls. The model's settings must fit rank_model.
  Communicator* tensor = nullptr;
  // Called with each parameter once it has its values, before the next one is made; it may free their memory.
  std::function<void(Parameter&)> made = {};
};

struct LossParts {
  at::Tensor cross_entropy;  // () fp32, mean over the batch, nats
  at::Tensor balance_loss;   // () fp32, mean over the layers, unweighted
  at::Tensor z_loss;         // () fp32, likewise
  at::Tensor head;           // () fp32: the head's part of the objective; cross_entropy without a reference
  at::Tensor reference_kl;   // () fp32, unweighted, mean over the batch, nats; undefined without a reference
};

// What a forward pass takes besides its batch.
struct ForwardContext {
  // The factor that backward multiplies the loss with, which linear_cross_entropy takes as gradient_scale.
  // The losses returned are unscaled.
  std::optional<at::Tensor> loss_scale = {};
  const ReferenceHead* reference = nullptr;  // another model's head for the same tokens; null: none
  Documents documents = {};
};

// A decoder-only transformer of mixtures of experts (or dense): embedding -> N x [attention, MoE] -> norm ->
// head. Weights start as normal(0, 0.02), those that write to the residual stream divided by sqrt(2 *
// layers); each is a function of (seed, its name) alone.
//
// With options.stage it has the weights of that stage alone. Names and layer numbers, a runner's too, are the
// whole model's, and so are the weights' values. With tied embeddings the first and the last stage have a
// copy of the embedding each, and each gets a part of its gradient.
class Transformer {
 public:
  Transformer(const ModelSettings& model, const AttentionSettings& attention,
              const TransformerOptions& options);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  // tokens, targets (B, S) int64; a target of -1 is left out of the mean. In training, dispatch is as the
  // settings say and routing is counted; otherwise the model is dropless. Whole models only, as everything
  // below that takes tokens; it is losses(run_blocks(embed(tokens))).
  LossParts forward(const at::Tensor& tokens_BS, const at::Tensor& targets_BS, bool training,
                    BlockRunner& runner, const ForwardContext& context = {});

  // The three parts of forward, for a pipeline of stages. The stage with the embedding starts with embed, the
  // others with the Hidden that they receive; the stage with the head ends with losses, the others hand their
  // Hidden on. Cut there, a backward pass has the bits of the whole model's: a stage differentiates its three
  // outputs with the gradients that the next stage has of its inputs. A stage of several chunks runs the
  // blocks of one at a time.
  Hidden embed(const at::Tensor& tokens_BS, BlockRunner& runner);
  Hidden run_blocks(Hidden hidden, bool training, BlockRunner& runner, const Documents& documents = {},
                    int64_t chunk = 0);
  LossParts losses(Hidden hidden, const at::Tensor& targets_BS, BlockRunner& runner,
                   const ForwardContext& context = {});

  // This model's side of a comparison, for tokens (B, S), with the settings' dispatch and without gradients.
  ReferenceHead reference(const at::Tensor& tokens_BS, BlockRunner& runner, double weight,
                          const Documents& documents = {});

  // Logits (B, S, V) in the compute type, for short texts: the whole tensor is allocated.
  at::Tensor logits(const at::Tensor& tokens_BS, BlockRunner& runner);

  // Decoding: logits (B, V) in the compute type for the token after the last of tokens (B, S). The tokens
  // follow the positions that the cache holds and are added to it: a prompt, whole or in pieces, then one
  // token at a time. Dropless, so that no token's fate depends on the others; without gradients.
  at::Tensor next_logits(const at::Tensor& tokens_BS, KvCache& cache, BlockRunner& runner);

  // As above for several texts at once, each with a cache of batch 1. tokens (1, S) concatenates the texts'
  // tokens; logits (texts, V) are those after the last token of each text. Texts do not see one another.
  at::Tensor next_logits(const at::Tensor& tokens_1S, std::span<const CachedText> texts, BlockRunner& runner);

  // As above for one token of each of B texts, which share `cache`: tokens (B) at places.position_B (B), both
  // int64 on the device, with their rows of the rope table in places.rope. What it does depends on shapes
  // alone, so that a CUDA graph may capture it; the cache's lengths are neither read nor changed.
  at::Tensor next_logits(const at::Tensor& tokens_B, const TokenPositions& places, KvCache& cache,
                         BlockRunner& runner);

  // What training minimises: the head's loss plus balance_loss and z_loss with the settings' weights.
  at::Tensor objective(const LossParts& parts) const;

  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // State that no gradient moves (the sigmoid router's biases), by name, for checkpoints.
  struct Buffer {
    std::string name;
    at::Tensor tensor;
  };
  const std::vector<Buffer>& buffers() const { return buffers_; }

  // Routing since the last reset, one entry per layer of the stage (empty tensors in a dense model).
  const std::vector<RoutingStats>& routing_stats() const { return stats_; }
  void reset_routing_stats();
  // The sigmoid router's biases, moved by the loads counted since the last reset; empty for other routers.
  std::vector<at::Tensor> next_router_biases() const;
  // Sets them. Nothing is allocated, so that an update that has begun can finish.
  void set_router_biases(const std::vector<at::Tensor>& biases);

  const ModelSettings& settings() const { return model_; }  // the whole model's
  // What this rank's blocks have: of a slice of the weights, its part of the heads and of d_expert.
  const ModelSettings& block_settings() const { return blocks_model_; }
  const Stage& stage() const { return options_.stage; }
  c10::Device device() const { return options_.device; }
  c10::ScalarType compute() const { return options_.compute; }
  bool fp8() const { return options_.fp8; }

 private:
  Hidden run(Hidden hidden, bool training, BlockRunner& runner, const TokenPositions& places,
             std::span<const CachedText> texts = {}, int64_t chunk = 0);
  Hidden run_block(Hidden hidden, int64_t index, bool training, BlockRunner& runner,
                   const TokenPositions& places, std::span<const CachedText> texts);
  BlockFunction block(int64_t index, bool training, const TokenPositions& places,
                      std::vector<CachedRows> rows, SelectiveRecompute* pieces);
  // The normed output of the last block (B, S, D), outside of training.
  at::Tensor decode(const at::Tensor& tokens_BS, BlockRunner& runner, const TokenPositions& places,
                    std::span<const CachedText> texts = {});
  at::Tensor add_matrix(const std::string& name, std::vector<int64_t> shape, double deviation,
                        bool expert = false, int64_t heads = 0, int64_t head_rows = 0);
  at::Tensor add_experts(const std::string& name, std::vector<int64_t> shape, double deviation);
  at::Tensor add_matrix(Parameter parameter, std::vector<int64_t> shape, double deviation);
  at::Tensor add_fp32(const std::string& name, at::IntArrayRef shape, double deviation, double mean);
  void add_block(int64_t layer);
  void add_feed_forward(const std::string& prefix, MoeWeights& weights, double residual);
  const at::Tensor& rope(int64_t sequence);
  at::Tensor cached_rope(std::span<const CachedText> texts) const;
  at::Tensor rope_in(const at::Tensor& documents_BS);  // on the device
  TokenPositions places_of(int64_t sequence, const Documents& documents = {});
  at::Tensor on_device(const at::Tensor& batch) const;
  at::Tensor embedded(const at::Tensor& tokens_BS) const;
  at::Tensor final_norm(const at::Tensor& x_BSD) const;
  at::Tensor logits_of(const at::Tensor& x_TD, BlockRunner& runner) const;

  ModelSettings model_, blocks_model_;  // the whole model's; block_settings()
  AttentionSettings attention_;
  TransformerOptions options_;
  Reducer reducer_;
  std::vector<Parameter> parameters_;
  std::vector<Buffer> buffers_;
  at::Tensor embedding_VD_, head_VD_;  // (V, D) compute, of this rank's ids; the same tensor when tied
  at::Tensor final_norm_D_;            // (D) fp32
  std::vector<BlockWeights> blocks_;   // the stage's
  std::vector<RoutingStats> stats_;    // of each of blocks_
  at::Tensor rope_;                    // table of the last sequence length
};

}  // namespace moelab
