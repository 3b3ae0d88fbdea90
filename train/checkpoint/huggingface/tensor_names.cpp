#include "train/checkpoint/huggingface/tensor_names.h"

#include <ATen/ATen.h>

#include <unordered_map>

// Axes: D width, E experts, F expert width, d head width.
namespace moelab {
namespace {

class Views {
 public:
  Views(const std::vector<TensorEntry>& ours, HfFamily family, const ModelSettings& model)
      : mixtral_(family == HfFamily::mixtral), model_(model) {
    for (const TensorEntry& entry : ours) ours_[entry.name] = entry.tensor.detach();
  }

  std::vector<TensorEntry> make() {
    add("model.embed_tokens", "embedding");
    for (int64_t layer = 0; layer < model_.layers; ++layer) {
      const std::string number = std::to_string(layer) + ".";
      add_attention("model.layers." + number, "blocks." + number);
      add_experts("model.layers." + number, "blocks." + number);
    }
    add("model.norm", "final_norm");
    if (!model_.tie_embeddings) add("lm_head", "head");
    check_all_covered();
    return std::move(views_);
  }

 private:
  void add(const std::string& module, const at::Tensor& view) {
    views_.push_back({module + ".weight", view});
  }
  void add(const std::string& module, const std::string& name) { add(module, ours(name)); }

  const at::Tensor& ours(const std::string& name) const {
    const auto found = ours_.find(name);
    TORCH_CHECK(found != ours_.end(), "the model has no ", name);
    return found->second;
  }

  void add_attention(const std::string& theirs, const std::string& block) {
    const int64_t d = model_.head(), q = model_.heads * d, kv = model_.kv() * d;
    const at::Tensor& qkv = ours(block + "qkv");  // (q + 2kv, D)
    add(theirs + "input_layernorm", block + "attention_norm");
    add(theirs + "self_attn.q_proj", qkv.narrow(0, 0, q));
    add(theirs + "self_attn.k_proj", qkv.narrow(0, q, kv));
    add(theirs + "self_attn.v_proj", qkv.narrow(0, q + kv, kv));
    add(theirs + "self_attn.o_proj", block + "attention_out");
    if (model_.qk_norm == QkNorm::none) return;
    add(theirs + "self_attn.q_norm", block + "q_norm");
    add(theirs + "self_attn.k_norm", block + "k_norm");
  }

  void add_experts(const std::string& theirs, const std::string& block) {
    const int64_t F = model_.d_expert;
    const at::Tensor &w13_E2FD = ours(block + "experts.w13"), &w2_EDF = ours(block + "experts.w2");
    const std::string layer = theirs + (mixtral_ ? "block_sparse_moe." : "mlp.");
    add(theirs + "post_attention_layernorm", block + "moe_norm");
    add(layer + "gate", block + "router");
    for (int64_t e = 0; e < model_.experts; ++e) {
      const std::string expert = layer + "experts." + std::to_string(e) + ".";
      add(expert + (mixtral_ ? "w1" : "gate_proj"), w13_E2FD[e].narrow(0, 0, F));
      add(expert + (mixtral_ ? "w3" : "up_proj"), w13_E2FD[e].narrow(0, F, F));
      add(expert + (mixtral_ ? "w2" : "down_proj"), w2_EDF[e]);
    }
  }

  void check_all_covered() const {
    int64_t given = 0, covered = 0;
    for (const auto& [name, tensor] : ours_) given += tensor.numel();
    for (const TensorEntry& view : views_) covered += view.tensor.numel();
    TORCH_CHECK(given == covered, "the model has ", given, " values, Hugging Face's names cover ", covered);
  }

  bool mixtral_;
  const ModelSettings& model_;
  std::unordered_map<std::string, at::Tensor> ours_;
  std::vector<TensorEntry> views_;
};

}  // namespace

std::vector<TensorEntry> hf_views(const std::vector<TensorEntry>& ours, HfFamily family,
                                  const ModelSettings& model) {
  return Views(ours, family, model).make();
}

}  // namespace moelab
