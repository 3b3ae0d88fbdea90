#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "moe/settings/model_settings.h"

// config.json of the folders that Hugging Face's transformers reads and writes, for the three families of
// models that are ours by another name. Keys and defaults are those of transformers 4 and 5.
namespace moelab {

enum class HfFamily { mixtral, olmoe, qwen3_moe };

struct HfConfig {
  HfFamily family = HfFamily::mixtral;
  // Everything that shapes the function is read; dropless, with the name of the family's published preset.
  ModelSettings model;
  AttentionSettings attention;  // Mixtral's sliding window; flash without one
  int64_t max_positions = 0;    // tokens a sequence
};

// Reads folder/config.json. Throws UserError, naming the key, for what is missing or of the wrong type and
// for what moelab's models lack: other architectures, rope scaling, sliding windows but Mixtral's, shared
// experts, dense layers in between, biases, dropout, other activations, quantised weights.
HfConfig read_hf_config(const std::filesystem::path& folder);

// The family that has this model. Throws UserError, naming the setting, when none has.
HfFamily family_of(const ModelSettings& model, const AttentionSettings& attention);

// The text of config.json for a model of that family with fp32 weights, for transformers 4 and 5.
std::string hf_config_text(HfFamily family, const ModelSettings& model, const AttentionSettings& attention,
                           int64_t max_positions);

}  // namespace moelab
