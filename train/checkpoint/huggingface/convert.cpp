#include "train/checkpoint/huggingface/convert.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "moe/settings/error.h"
#include "moe/transformer.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/huggingface/model_config.h"
#include "train/checkpoint/huggingface/tensor_names.h"
#include "train/checkpoint/huggingface/weight_files.h"
#include "train/io/json_text.h"
#include "train/settings/load.h"
#include "train/settings/model_shape.h"
#include "train/settings/print.h"
#include "train/settings/resolve.h"
#include "train/settings/validate.h"

namespace moelab {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSettings = "config.yaml";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kTokenizer = "tokenizer.json";

void require_new_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error) || (fs::is_directory(folder, error) && fs::is_empty(folder, error))) return;
  throw UserError(folder.string() + ": already exists; give the name of a new folder");
}

// Lets `fill` make the folder under a temporary name, then renames it; an error leaves nothing behind.
void fill_and_rename(const fs::path& to, const std::function<void(const fs::path& folder)>& fill) {
  const fs::path whole = fs::absolute(to / "").lexically_normal().parent_path();
  const fs::path temporary = temporary_name(whole.parent_path(), whole.filename().string());
  remove_tree(temporary);
  try {
    create_folders(temporary);
    fill(temporary);
    sync_folder(temporary);
    rename_path(temporary, whole);
    sync_folder(whole.parent_path());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
}

bool is_hf_folder(const fs::path& folder) { return fs::exists(folder / "config.json"); }

void require_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) throw UserError(folder.string() + ": no such folder");
}

LoadedCheckpoint open_checkpoint(const fs::path& folder) {
  require_folder(folder);
  LoadedCheckpoint loaded = load_checkpoint_in(folder);
  if (!loaded.files.contains(kSettings)) {
    throw UserError(loaded.path.string() + ": has no " + kSettings + ", which says what model it is");
  }
  return loaded;
}

Settings settings_of(const LoadedCheckpoint& checkpoint) {
  return load_settings({.config = (checkpoint.path / kSettings).string()});
}

// `ours` under the names that the files have, and the tied head, which some programs store separately.
std::vector<TensorEntry> expected_tensors(const HfWeights& weights, const HfConfig& config,
                                          const std::vector<TensorEntry>& ours) {
  std::vector<TensorEntry> views = hf_views(ours, config.family, config.model);
  if (config.model.tie_embeddings && weights.has(kHead))
    views.push_back({kHead, at::empty_like(views.front().tensor)});
  return views;
}

void read_hf_weights(const HfWeights& weights, const HfConfig& config, const std::vector<TensorEntry>& into) {
  const std::vector<TensorEntry> expected = expected_tensors(weights, config, into);
  weights.restore(expected);
  if (config.model.tie_embeddings && expected.back().name == kHead &&
      !at::equal(expected.back().tensor, expected.front().tensor)) {
    throw UserError(weights.folder().string() +
                    ": lm_head.weight is not the embedding, but config.json ties them");
  }
}

// Uninitialised fp32 weights of the model, by our names.
std::vector<TensorEntry> empty_weights(const ModelSettings& model, c10::Device device) {
  TransformerOptions options;
  options.device = c10::kMeta;
  const Transformer shapes(model, {}, options);
  std::vector<TensorEntry> weights;
  for (const Parameter& parameter : shapes.parameters()) {
    weights.push_back(
        {parameter.name, at::empty(parameter.value.sizes(), at::TensorOptions(at::kFloat).device(device))});
  }
  return weights;
}

// Throws UserError if the files hold another model than config.json describes. Takes no memory for the model,
// which may be described as larger than any machine.
void require_described(const HfWeights& weights, const HfConfig& config) {
  const int64_t experts = config.model.layers * config.model.experts;
  if (experts > static_cast<int64_t>(weights.size())) {
    throw UserError(weights.folder().string() + ": holds " + std::to_string(weights.size()) +
                    " tensors, and config.json describes " + std::to_string(experts) + " experts");
  }
  weights.check(expected_tensors(weights, config, empty_weights(config.model, c10::kMeta)));
}

Settings training_settings(const HfConfig& config) {
  Settings settings = unresolve(load_settings({.config = config.model.preset}));
  const ModelSettings published = settings.model;
  settings.model = config.model;
  settings.model.balance_loss = published.balance_loss;
  settings.model.z_loss = published.z_loss;
  settings.attention = config.attention;
  settings.train.sequence = std::min(settings.train.sequence, config.max_positions);
  settings = resolve(std::move(settings));
  validate(settings);
  return settings;
}

// Each tensor, row-major; valid as long as `saved`.
std::vector<TensorEntry> whole_tensors(const CheckpointTensors& saved) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : saved.tensors()) entries.push_back({name, saved.tensor(name)});
  return entries;
}

// The newest file with that name in a checkpoint, a folder of checkpoints or a run folder.
std::optional<fs::path> saved_file(const fs::path& folder, const char* name) {
  std::vector<fs::path> places = {folder};
  for (const fs::path& checkpoints : {folder / "checkpoints", folder}) {
    if (!fs::is_directory(checkpoints)) continue;
    const std::vector<int64_t> steps = list_checkpoints(checkpoints);
    if (!steps.empty()) places.push_back(checkpoints / step_name(steps.back()));
  }
  for (const fs::path& place : places) {
    if (fs::is_regular_file(place / name)) return place / name;
  }
  return std::nullopt;
}

// The id of each token of a tokenizer.json.
nlohmann::json token_ids(const fs::path& file) {
  const nlohmann::json json = parse_json(read_text_file(file, kMaxCheckpointText), file.string());
  try {
    nlohmann::json ids = json.at("model").at("vocab");
    if (!json.contains("added_tokens")) return ids;
    for (const nlohmann::json& token : json["added_tokens"]) ids[token.at("content")] = token.at("id");
    return ids;
  } catch (const nlohmann::json::exception&) {
    throw UserError(file.string() + ": not the tokenizer.json of a vocabulary of tokens with ids");
  }
}

void require_same_model(const std::string& from, const ModelSettings& there, const ModelSettings& here) {
  const nlohmann::ordered_json theirs = shape_settings(there), ours = shape_settings(here);
  std::string differences;
  for (const auto& [name, value] : theirs.items()) {
    if (value == ours.at(name)) continue;
    differences += (differences.empty() ? "model." : ", model.") + name + "=" + value.dump() + " (here " +
                   ours.at(name).dump() + ")";
  }
  if (differences.empty()) return;
  throw UserError(from + ": another model than this run's; it has " + differences);
}

}  // namespace

fs::path import_huggingface(const fs::path& from, const fs::path& to, const std::string& commit) {
  if (!is_hf_folder(from)) {
    throw UserError(from.string() + ": no config.json there; give the folder of a Hugging Face model");
  }
  require_new_folder(to);
  const HfConfig config = read_hf_config(from);
  CheckpointContent content;
  content.files[kSettings] = print_settings(training_settings(config));
  const HfWeights weights(from);
  require_described(weights, config);
  content.model = empty_weights(config.model, c10::kCPU);
  read_hf_weights(weights, config, content.model);
  if (fs::exists(from / kTokenizer)) {
    content.files[kTokenizer] = read_text_file(from / kTokenizer, kMaxCheckpointText);
  }
  content.commit = commit;
  write_checkpoint(to, content, 1);
  return to / step_name(content.state.step);
}

void export_huggingface(const fs::path& from, const fs::path& to, int64_t max_shard_bytes) {
  const LoadedCheckpoint checkpoint = open_checkpoint(from);
  const Settings settings = settings_of(checkpoint);
  const HfFamily family = family_of(settings.model, settings.attention);
  require_new_folder(to);
  fill_and_rename(to, [&](const fs::path& folder) {
    write_hf_weights(folder, hf_views(whole_tensors(checkpoint.model), family, settings.model),
                     max_shard_bytes);
    write_text_file(folder / "config.json",
                    hf_config_text(family, settings.model, settings.attention, settings.train.sequence));
    const auto tokenizer = checkpoint.files.find(kTokenizer);
    if (tokenizer != checkpoint.files.end()) write_text_file(folder / kTokenizer, tokenizer->second);
  });
}

Settings model_folder_settings(const std::string& folder) {
  require_folder(folder);
  if (is_hf_folder(folder)) return training_settings(read_hf_config(folder));
  const std::optional<fs::path> config = saved_file(folder, kSettings);
  if (!config) {
    throw UserError(folder +
                    ": no model there; give a Hugging Face folder, a checkpoint or the folder of a run");
  }
  return load_settings({.config = config->string()});
}

std::optional<fs::path> model_folder_tokenizer(const fs::path& folder) {
  if (!is_hf_folder(folder)) return saved_file(folder, kTokenizer);
  if (fs::is_regular_file(folder / kTokenizer)) return folder / kTokenizer;
  return std::nullopt;
}

void require_same_tokenizer(const fs::path& folder, const fs::path& data) {
  const std::optional<fs::path> own = model_folder_tokenizer(folder);
  if (!own || token_ids(*own) == token_ids(data)) return;
  throw UserError("train.init=" + folder.string() + ": its tokenizer.json gives tokens other ids than " +
                  data.string() + "; prepare the data with scripts/prepare_data.py --tokenizer " +
                  own->string());
}

void load_initial_weights(const fs::path& from, const ModelSettings& model,
                          const std::vector<TensorEntry>& into, const std::string& setting) {
  const std::string named = setting + "=" + from.string();
  if (is_hf_folder(from)) {
    const HfConfig config = read_hf_config(from);
    require_same_model(named, config.model, model);
    read_hf_weights(HfWeights(from), config, into);
    return;
  }
  const LoadedCheckpoint checkpoint = open_checkpoint(from);
  require_same_model(named, settings_of(checkpoint).model, model);
  restore(checkpoint.model, into);
}

}  // namespace moelab
