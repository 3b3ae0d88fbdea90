#include "train/checkpoint/huggingface/model_config.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "moe/settings/error.h"
#include "train/checkpoint/file_io.h"
#include "train/io/json_text.h"
#include "train/settings/convert.h"
#include "train/settings/validate.h"

namespace moelab {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr uint64_t kMaxConfigBytes = 1 << 24;

struct Traits {
  const char *model_type, *architecture, *preset;
  const char *d_expert, *experts;  // keys
  double norm_eps, rope_theta;     // default if the key is missing
  int64_t kv_heads;                // default if the key is missing; 0: as many as query heads
  QkNorm qk_norm;
};

constexpr std::array<Traits, 3> kFamilies = {
    {{"mixtral", "MixtralForCausalLM", "mixtral-8x7b", "intermediate_size", "num_local_experts", 1e-5, 1e6, 8,
      QkNorm::none},
     {"olmoe", "OlmoeForCausalLM", "olmoe-1b-7b", "intermediate_size", "num_experts", 1e-5, 1e4, 0,
      QkNorm::full},
     {"qwen3_moe", "Qwen3MoeForCausalLM", "qwen3-30b-a3b", "moe_intermediate_size", "num_experts", 1e-6, 1e4,
      4, QkNorm::head}}};

const Traits& traits_of(HfFamily family) { return kFamilies[static_cast<size_t>(family)]; }

// A parsed config.json whose error messages name file and key.
class Config {
 public:
  explicit Config(const fs::path& path)
      : path_(path.string()), json_(parse_json(read_text_file(path, kMaxConfigBytes), path_)) {
    if (!json_.is_object()) fail("not a JSON object");
  }

  [[noreturn]] void fail(const std::string& what) const { throw UserError(path_ + ": " + what); }

  [[noreturn]] void unsupported(const std::string& key, const json& value, const std::string& right) const {
    fail(key + "=" + value.dump(-1, ' ', true).substr(0, 100) + " is not supported; " + right);
  }

  bool has(const char* key) const { return json_.contains(key); }

  // Null if the key is missing or null.
  const json& at(const char* key) const {
    static const json null;
    const auto found = json_.find(key);
    return found == json_.end() ? null : *found;
  }

  int64_t integer(const char* key, std::optional<int64_t> fallback = {}) const {
    return read(key, fallback, &json::is_number_integer, "an integer");
  }
  double number(const char* key, std::optional<double> fallback = {}) const {
    return read(key, fallback, &json::is_number, "a number");
  }
  bool flag(const char* key, bool fallback) const {
    return read(key, std::optional(fallback), &json::is_boolean, "true or false");
  }

  // Throws unless the key is missing, null or equal to `value`, the only one that our models support.
  void only(const char* key, const json& value) const {
    const json& found = at(key);
    if (found.is_null() || found == value) return;
    unsupported(key, found, value.is_null() ? "it must be absent" : "only " + value.dump() + " is");
  }

 private:
  template <class T>
  T read(const char* key, std::optional<T> fallback, bool (json::*is)() const noexcept,
         const char* expected) const {
    const json& value = at(key);
    if (value.is_null() && fallback) return *fallback;
    if (!(value.*is)()) {
      fail(std::string(key) + ": expected " + expected + ", got " +
           (has(key) ? value.dump(-1, ' ', true).substr(0, 100) : "nothing"));
    }
    return value.get<T>();
  }

  std::string path_;
  json json_;
};

HfFamily read_family(const Config& config) {
  const json& type = config.at("model_type");
  for (size_t i = 0; i < kFamilies.size(); ++i) {
    if (type != kFamilies[i].model_type) continue;
    const json& architectures = config.at("architectures");
    if (!architectures.is_null() && architectures != json::array({kFamilies[i].architecture})) {
      config.unsupported("architectures", architectures,
                         "only [\"" + std::string(kFamilies[i].architecture) + "\"] is");
    }
    return static_cast<HfFamily>(i);
  }
  config.unsupported("model_type", type, "only mixtral, olmoe and qwen3_moe are");
}

void refuse_what_we_lack(const Config& config, HfFamily family) {
  config.only("quantization_config", nullptr);
  config.only("hidden_act", "silu");
  config.only("attention_bias", false);
  config.only("attention_dropout", 0);
  config.only("router_jitter_noise", 0);
  config.only("partial_rotary_factor", 1);
  config.only("use_sliding_window", false);
  // Mixtral's window is supported; Qwen3 configs state a window even when it is switched off
  if (family == HfFamily::olmoe) config.only("sliding_window", nullptr);
  config.only("decoder_sparse_step", 1);
  config.only("mlp_only_layers", json::array());
  for (const char* key : {"n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size"}) {
    config.only(key, 0);
  }
}

// transformers 4 writes rope_theta, and scaling in rope_scaling; transformers 5 writes both in
// rope_parameters.
double read_rope_theta(const Config& config, double fallback) {
  double theta = config.number("rope_theta", fallback);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json& rope = config.at(key);
    if (rope.is_null()) continue;
    if (!rope.is_object()) config.unsupported(key, rope, "it must be an object");
    for (const auto& [name, value] : rope.items()) {
      const bool type = name == "rope_type" || name == "type";
      if (name == "rope_theta" && value.is_number()) {
        theta = value.get<double>();
      } else if (!(type && value == "default") && !(name == "partial_rotary_factor" && value == 1)) {
        config.unsupported(std::string(key) + "." + name, value, "only the default rotary embedding is");
      }
    }
  }
  return theta;
}

double read_clip(const Config& config, HfFamily family) {
  if (family != HfFamily::olmoe || config.at("clip_qkv").is_null()) return 0;
  const double clip = config.number("clip_qkv");
  if (clip <= 0) config.unsupported("clip_qkv", clip, "it must be above 0, or null");
  return clip;
}

AttentionSettings read_attention(const Config& config, HfFamily family) {
  AttentionSettings attention;
  if (family != HfFamily::mixtral || config.at("sliding_window").is_null()) return attention;
  attention.kernel = AttentionKernel::sliding_window;
  attention.window = config.integer("sliding_window");
  return attention;
}

int64_t read_experts(const Config& config, const Traits& traits) {
  // transformers 5 uses one name for both families
  for (const char* key : {"num_experts", "num_local_experts"}) {
    if (!config.has(traits.experts) && config.has(key)) return config.integer(key);
  }
  return config.integer(traits.experts);
}

ModelSettings read_model(const Config& config, HfFamily family) {
  const Traits& traits = traits_of(family);
  ModelSettings m;
  m.preset = traits.preset;
  m.dispatch = Dispatch::dropless;
  m.vocab = config.integer("vocab_size");
  m.d_model = config.integer("hidden_size");
  m.layers = config.integer("num_hidden_layers");
  m.heads = config.integer("num_attention_heads");
  m.kv_heads = config.integer("num_key_value_heads", config.has("num_key_value_heads") ? 0 : traits.kv_heads);
  m.head_dim = config.integer("head_dim", 0);
  m.d_expert = config.integer(traits.d_expert);
  m.experts = read_experts(config, traits);
  m.experts_per_token = config.integer("num_experts_per_tok");
  m.norm_topk = family == HfFamily::mixtral || config.flag("norm_topk_prob", false);
  m.norm_eps = config.number("rms_norm_eps", traits.norm_eps);
  m.qk_norm = traits.qk_norm;
  m.clip_qkv = read_clip(config, family);
  m.rope_theta = read_rope_theta(config, traits.rope_theta);
  m.tie_embeddings = config.flag("tie_word_embeddings", false);
  return m;
}

void check_model(const Config& config, const HfConfig& read) {
  const auto& [family, model, attention, max_positions] = read;
  Settings settings;
  settings.model = model;
  settings.attention = attention;
  try {
    validate(settings);
  } catch (const UserError& error) {
    config.fail(error.what());
  }
  if (model.dense()) config.unsupported("num_experts", 0, "a mixture has at least 1");
  if (family == HfFamily::olmoe && model.head() * model.heads != model.d_model) {
    config.unsupported("head_dim", model.head(), "an OLMoE's is hidden_size / num_attention_heads");
  }
}

[[noreturn]] void no_family(const std::string& setting, const std::string& why) {
  throw UserError("export: " + setting + ": " + why);
}

HfFamily family_of(const ModelSettings& m) {
  if (m.dense()) no_family("model.experts=0", "Mixtral, OLMoE and Qwen3-MoE have no dense form");
  if (m.shared_experts > 0) {
    no_family("model.shared_experts=" + value_text(m.shared_experts),
              "no supported family has shared experts");
  }
  if (m.router != RouterKind::softmax) {
    no_family("model.router=" + value_text(m.router), "every supported family routes by softmax");
  }
  if (m.clip_qkv > 0 && m.qk_norm != QkNorm::full) {
    no_family("model.clip_qkv=" + value_text(m.clip_qkv), "only OLMoE clamps, and it has model.qk_norm=full");
  }
  switch (m.qk_norm) {
    case QkNorm::head:
      return HfFamily::qwen3_moe;
    case QkNorm::full:
      if (m.head() * m.heads == m.d_model) return HfFamily::olmoe;
      no_family("model.head_dim=" + value_text(m.head()),
                "OLMoE, which model.qk_norm=full makes it, has d_model / heads");
    case QkNorm::none:
      break;
  }
  if (!m.norm_topk) {
    no_family("model.norm_topk=false", "Mixtral, which model.qk_norm=none makes it, always renormalises");
  }
  return HfFamily::mixtral;
}

}  // namespace

HfConfig read_hf_config(const fs::path& folder) {
  const Config config(folder / "config.json");
  HfConfig result;
  result.family = read_family(config);
  refuse_what_we_lack(config, result.family);
  result.model = read_model(config, result.family);
  result.attention = read_attention(config, result.family);
  result.max_positions = config.integer("max_position_embeddings", 4096);
  check_model(config, result);
  return result;
}

HfFamily family_of(const ModelSettings& model, const AttentionSettings& attention) {
  const HfFamily family = family_of(model);
  if (attention.kernel == AttentionKernel::block_sparse ||
      (attention.kernel == AttentionKernel::sliding_window && family != HfFamily::mixtral)) {
    no_family("attention.kernel=" + value_text(attention.kernel),
              "of the families only Mixtral, with model.qk_norm=none, has a window, and none has blocks");
  }
  return family;
}

std::string hf_config_text(HfFamily family, const ModelSettings& m, const AttentionSettings& attention,
                           int64_t max_positions) {
  const Traits& traits = traits_of(family);
  nlohmann::ordered_json config = {
      {"architectures", json::array({traits.architecture})},
      {"model_type", traits.model_type},
      {"dtype", "float32"},
      {"vocab_size", m.vocab},
      {"hidden_size", m.d_model},
      {"num_hidden_layers", m.layers},
      {"num_attention_heads", m.heads},
      {"num_key_value_heads", m.kv()},
      {traits.d_expert, m.d_expert},
      {traits.experts, m.experts},
      {"num_experts_per_tok", m.experts_per_token},
      {"hidden_act", "silu"},
      {"rms_norm_eps", m.norm_eps},
      {"rope_theta", m.rope_theta},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", m.rope_theta}}},
      {"tie_word_embeddings", m.tie_embeddings},
      {"max_position_embeddings", max_positions}};
  if (family != HfFamily::olmoe) config["head_dim"] = m.head();
  if (family != HfFamily::mixtral) config["norm_topk_prob"] = m.norm_topk;
  if (m.clip_qkv > 0) config["clip_qkv"] = m.clip_qkv;
  if (attention.kernel == AttentionKernel::sliding_window) config["sliding_window"] = attention.window;
  // null, because the families' default ids belong to their own vocabularies
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) config[token] = nullptr;
  return config.dump(2) + "\n";
}

}  // namespace moelab
