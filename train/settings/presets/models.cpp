#include "train/settings/presets/presets.h"

namespace moelab {
namespace {

// Shapes of published models follow their config.json: allenai/OLMoE-1B-7B-0924, Qwen/Qwen3-30B-A3B,
// mistralai/Mixtral-8x7B-v0.1, meta-llama/Llama-2-7b, -70b and Llama-3.1-405B.
const Preset::Pairs small_recipe = {{"train.steps", "2000"},
                                    {"optim.lr", "6e-4"},
                                    {"optim.min_lr", "6e-5"},
                                    {"optim.warmup", "100"},
                                    {"train.micro_batch", "4"}};
const Preset::Pairs large_recipe = {{"train.steps", "10000"},
                                    {"optim.lr", "3e-4"},
                                    {"optim.min_lr", "3e-5"},
                                    {"optim.warmup", "2000"},
                                    {"train.micro_batch", "1"}};

Preset moe(std::string_view name, std::string_view about, Preset::Pairs settings, Preset::Pairs recipe = {}) {
  settings.insert(settings.end(), {{"model.dispatch", "capacity"},
                                   {"model.capacity_factor", "1.25"},
                                   {"model.router", "softmax"},
                                   {"model.norm_topk", "true"},
                                   {"model.tie_embeddings", "true"}});
  return {name, about, std::move(settings), std::move(recipe)};
}

// Models from a guide that lists cards by name.
Preset eight_experts(std::string_view name, std::string_view about, std::string_view d_model,
                     std::string_view d_expert, std::string_view layers, std::string_view heads) {
  return moe(name, about,
             {{"model.d_model", d_model},
              {"model.layers", layers},
              {"model.heads", heads},
              {"model.experts", "8"},
              {"model.experts_per_token", "2"},
              {"model.d_expert", d_expert},
              {"model.vocab", "50304"},
              {"train.sequence", "512"}},
             small_recipe);
}

Preset published(std::string_view name, std::string_view about, Preset::Pairs settings) {
  settings.insert(settings.end(), {{"model.dispatch", "dropless"},
                                   {"model.tie_embeddings", "false"},
                                   {"model.norm_eps", name == "qwen3-30b-a3b" ? "1e-6" : "1e-5"},
                                   {"train.sequence", "4096"}});
  return {name, about, std::move(settings), large_recipe};
}

std::vector<Preset> own_models() {
  return {
      moe("moe-pico", "bytes, for tests: trains in seconds on a CPU",
          {{"model.d_model", "128"},
           {"model.layers", "4"},
           {"model.heads", "4"},
           {"model.experts", "4"},
           {"model.experts_per_token", "2"},
           {"model.d_expert", "352"},
           {"model.vocab", "256"},
           {"train.sequence", "256"}},
          {{"train.micro_batch", "8"}, {"train.steps", "200"}}),
      moe("moe-micro", "bytes, the default: trains in minutes on a CPU",
          {{"model.d_model", "384"},
           {"model.layers", "6"},
           {"model.heads", "6"},
           {"model.experts", "4"},
           {"model.experts_per_token", "2"},
           {"model.d_expert", "1024"},
           {"model.vocab", "256"},
           {"train.sequence", "256"}}),
      moe("moe-nano", "4 experts, for one small GPU",
          {{"model.d_model", "512"},
           {"model.layers", "12"},
           {"model.heads", "8"},
           {"model.experts", "4"},
           {"model.experts_per_token", "2"},
           {"model.d_expert", "1408"},
           {"model.vocab", "50304"},
           {"train.sequence", "1024"}},
          small_recipe),
      moe("moe-small", "8 experts, for one GPU",
          {{"model.d_model", "768"},
           {"model.layers", "12"},
           {"model.heads", "12"},
           {"model.experts", "8"},
           {"model.experts_per_token", "2"},
           {"model.d_expert", "2048"},
           {"model.vocab", "50304"},
           {"train.sequence", "1024"}},
          small_recipe),
      eight_experts("moe-100m", "8 small experts, width 512, 14 layers", "512", "352", "14", "8"),
      eight_experts("moe-230m", "8 small experts, width 768, 16 layers", "768", "528", "16", "12"),
      eight_experts("moe-570m", "8 small experts, width 1024, 24 layers", "1024", "704", "24", "16"),
      eight_experts("moe-740m", "8 small experts, width 1024, 32 layers", "1024", "704", "32", "16"),
  };
}

std::vector<Preset> published_models() {
  return {
      published("olmoe-1b-7b", "OLMoE-1B-7B-0924: 64 experts, 8 a token",
                {{"model.d_model", "2048"},
                 {"model.layers", "16"},
                 {"model.heads", "16"},
                 {"model.experts", "64"},
                 {"model.experts_per_token", "8"},
                 {"model.d_expert", "1024"},
                 {"model.vocab", "50304"},
                 {"model.qk_norm", "full"},
                 {"model.norm_topk", "false"},
                 {"model.rope_theta", "10000"}}),
      published("qwen3-30b-a3b", "Qwen3-30B-A3B: 128 experts, 8 a token",
                {{"model.d_model", "2048"},
                 {"model.layers", "48"},
                 {"model.heads", "32"},
                 {"model.kv_heads", "4"},
                 {"model.head_dim", "128"},
                 {"model.experts", "128"},
                 {"model.experts_per_token", "8"},
                 {"model.d_expert", "768"},
                 {"model.vocab", "151936"},
                 {"model.qk_norm", "head"},
                 {"model.norm_topk", "true"},
                 {"model.rope_theta", "1000000"},
                 {"model.balance_loss", "0.001"},
                 {"model.z_loss", "0"}}),
      published("mixtral-8x7b", "Mixtral-8x7B: 8 experts, 2 a token",
                {{"model.d_model", "4096"},
                 {"model.layers", "32"},
                 {"model.heads", "32"},
                 {"model.kv_heads", "8"},
                 {"model.experts", "8"},
                 {"model.experts_per_token", "2"},
                 {"model.d_expert", "14336"},
                 {"model.vocab", "32000"},
                 {"model.norm_topk", "true"},
                 {"model.rope_theta", "1000000"},
                 {"model.balance_loss", "0.02"},
                 {"model.z_loss", "0"}}),
      published("dense-7b", "the shape of Llama 2 7B",
                {{"model.experts", "0"},
                 {"model.d_model", "4096"},
                 {"model.layers", "32"},
                 {"model.heads", "32"},
                 {"model.d_expert", "11008"},
                 {"model.vocab", "32000"}}),
      published("dense-70b", "the shape of Llama 2 70B",
                {{"model.experts", "0"},
                 {"model.d_model", "8192"},
                 {"model.layers", "80"},
                 {"model.heads", "64"},
                 {"model.kv_heads", "8"},
                 {"model.d_expert", "28672"},
                 {"model.vocab", "32000"}}),
      published("dense-405b", "the shape of Llama 3.1 405B",
                {{"model.experts", "0"},
                 {"model.d_model", "16384"},
                 {"model.layers", "126"},
                 {"model.heads", "128"},
                 {"model.kv_heads", "8"},
                 {"model.d_expert", "53248"},
                 {"model.vocab", "128256"},
                 {"model.rope_theta", "500000"}}),
  };
}

}  // namespace

const std::vector<Preset>& model_presets() {
  static const std::vector<Preset> models = [] {
    std::vector<Preset> all = own_models(), published = published_models();
    all.insert(all.end(), published.begin(), published.end());
    return all;
  }();
  return models;
}

std::vector<std::string> names_of(const std::vector<Preset>& presets) {
  std::vector<std::string> names;
  for (const Preset& preset : presets) names.emplace_back(preset.name);
  return names;
}

const Preset* find_preset(const std::vector<Preset>& presets, std::string_view name) {
  for (const Preset& preset : presets)
    if (preset.name == name) return &preset;
  return nullptr;
}

}  // namespace moelab
