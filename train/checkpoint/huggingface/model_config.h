#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "moe/settings/model_settings.h"

// config.json of folders that Hugging Face's transformers reads and writes, for the three families of models
// that moelab supports. Keys and defaults are those of transformers 4 and 5.
namespace moelab {

enum class HfFamily { mixtral, olmoe, qwen3_moe };

struct HfConfig {
  HfFamily family = HfFamily::mixtral;
  // Everything that shapes the function is read; dispatch is dropless, and the preset's name is the family's.
  ModelSettings model;
  AttentionSettings attention;  // Mixtral's sliding window; otherwise flash
  int64_t max_positions = 0;    // tokens per sequence
};

// Reads folder/config.json. Throws UserError, naming the key, for a value that is missing or of the wrong
// type, and for features that moelab's models lack: other architectures, rope scaling, sliding windows except
// Mixtral's, shared experts, some dense layers, biases, dropout, other activations, quantised weights.
HfConfig read_hf_config(const std::filesystem::path& folder);

// The family that the model belongs to. Throws UserError, naming the setting, if there is none.
HfFamily family_of(const ModelSettings& model, const AttentionSettings& attention);

// The text of config.json for a model of that family with fp32 weights, for transformers 4 and 5.
std::string hf_config_text(HfFamily family, const ModelSettings& model, const AttentionSettings& attention,
                           int64_t max_positions);

}  // namespace moelab
