#pragma once
#include "kernels/attention/attention_span.h"
#include "moe/settings/visitor.h"

namespace moelab {

enum class Dispatch { capacity, dropless, onehot };
constexpr std::array<std::string_view, 3> enum_names(Dispatch) { return {"capacity", "dropless", "onehot"}; }

enum class RouterKind { softmax, sigmoid, expert_choice };
constexpr std::array<std::string_view, 3> enum_names(RouterKind) {
  return {"softmax", "sigmoid", "expert_choice"};
}

enum class QkNorm { none, head, full };
constexpr std::array<std::string_view, 3> enum_names(QkNorm) { return {"none", "head", "full"}; }

enum class AttentionKernel { flash, materialised, sliding_window, block_sparse };
constexpr std::array<std::string_view, 4> enum_names(AttentionKernel) {
  return {"flash", "materialised", "sliding_window", "block_sparse"};
}

// The shape of a decoder-only transformer whose feed-forward layers are mixtures of experts. Zero in
// head_dim, kv_heads and capacity means "derived", see resolved().
struct ModelSettings {
  std::string preset = "moe-micro";
  int64_t vocab = 256;
  int64_t d_model = 384;
  int64_t layers = 6;
  int64_t heads = 6;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t d_expert = 1024;
  int64_t experts = 4;
  int64_t experts_per_token = 2;
  int64_t shared_experts = 0;
  double capacity_factor = 1.25;
  Dispatch dispatch = Dispatch::capacity;
  RouterKind router = RouterKind::softmax;
  bool norm_topk = true;
  double norm_eps = 1e-5;
  QkNorm qk_norm = QkNorm::none;
  double clip_qkv = 0;
  double rope_theta = 10000;
  bool tie_embeddings = true;
  double z_loss = 0.001;
  double balance_loss = 0.01;

  bool dense() const { return experts == 0; }
  int64_t kv() const { return kv_heads > 0 ? kv_heads : heads; }
  int64_t head() const { return head_dim > 0 ? head_dim : d_model / heads; }

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("preset", self.preset, "named model shape; moelab train --help lists them");
    v.field("vocab", self.vocab, "number of token ids", range(1, 1 << 24));
    v.field("d_model", self.d_model, "width of the residual stream", range(1, 1 << 20));
    v.field("layers", self.layers, "number of transformer blocks", range(1, 4096));
    v.field("heads", self.heads, "query heads", range(1, 4096));
    v.field("kv_heads", self.kv_heads, "key and value heads; 0: as many as query heads", range(0, 4096));
    v.field("head_dim", self.head_dim, "width of a head; 0: d_model / heads", range(0, 1024));
    v.field("d_expert", self.d_expert, "hidden width of an expert (of the feed-forward when dense)",
            range(1, 1 << 20));
    v.field("experts", self.experts, "experts in a layer; 0: a dense feed-forward", range(0, 4096));
    v.field("experts_per_token", self.experts_per_token, "experts each token is sent to (top-k)",
            range(1, 128));
    v.field("shared_experts", self.shared_experts, "experts that every token passes through", range(0, 64));
    v.field("capacity_factor", self.capacity_factor,
            "rows that an expert takes from a sequence, as a multiple of an even share", range(0.01, 1024));
    v.field("dispatch", self.dispatch, "how tokens reach their experts in training");
    v.field("router", self.router, "how experts are chosen");
    v.field("norm_topk", self.norm_topk, "renormalise the weights of the chosen experts to sum to 1");
    v.field("norm_eps", self.norm_eps, "epsilon of RMSNorm", range(0, 1));
    v.field("qk_norm", self.qk_norm, "RMSNorm on queries and keys: by head or over the full width");
    v.field("clip_qkv", self.clip_qkv, "clamp queries, keys and values to plus or minus this; 0: off",
            at_least(0));
    v.field("rope_theta", self.rope_theta, "base of the rotary embedding", at_least(1));
    v.field("tie_embeddings", self.tie_embeddings, "the output head is the embedding");
    v.field("z_loss", self.z_loss, "weight of the router z-loss", range(0, 1e3));
    v.field("balance_loss", self.balance_loss, "weight of the load-balance loss", range(0, 1e3));
  }
};

// Which earlier tokens a token sees, and how. flash, materialised: all. sliding_window: the last `window`
// tokens, its own included. block_sparse: the tokens of its own block and of the local_blocks - 1 blocks
// before it, in blocks of block_size counted from the sequence's first token. No token is global.
struct AttentionSettings {
  AttentionKernel kernel = AttentionKernel::flash;
  int64_t window = 256;
  int64_t block_size = 64;
  int64_t local_blocks = 4;

  AttentionSpan span() const {
    if (kernel == AttentionKernel::sliding_window) return {1, window};
    if (kernel == AttentionKernel::block_sparse) return {block_size, local_blocks};
    return {};
  }

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("kernel", self.kernel,
            "flash: scores are never stored; materialised: all S x S scores are stored (the baseline); "
            "sliding_window, block_sparse: flash over the nearest tokens alone, linear in S");
    v.field("window", self.window, "with sliding_window: tokens that each token sees, itself included",
            range(1, 1 << 24));
    v.field("block_size", self.block_size, "with block_sparse: tokens in a block", range(1, 1 << 20));
    v.field("local_blocks", self.local_blocks,
            "with block_sparse: blocks that each token sees, its own included", range(1, 1 << 20));
  }
};

}  // namespace moelab
