#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint/safetensors_file.h"
#include "train/config/settings.h"

// Between Hugging Face folders and checkpoints. Weights keep their bits (16-bit ones as the fp32 numbers that
// they are), a tokenizer.json travels along. All functions throw UserError.
namespace moelab {

// Makes the checkpoint to/step-0 of the folder `from`: weights, settings for training on (dropless, fp32, the
// recipe of the family's published preset), no optimizer state. `to` must not exist, or be empty. Returns the
// checkpoint's folder.
std::filesystem::path import_huggingface(const std::filesystem::path& from, const std::filesystem::path& to,
                                         const std::string& commit);

// Makes the Hugging Face folder `to`, which must not exist or be empty, of a checkpoint: step-N, or a folder
// of such, whose newest is taken. A crash leaves nothing under that name.
void export_huggingface(const std::filesystem::path& from, const std::filesystem::path& to,
                        int64_t max_shard_bytes = 5'000'000'000);

// The folder of a model: a Hugging Face folder, a checkpoint step-N, a folder of checkpoints (its newest
// counts) or of a run, which has them in checkpoints/.

// The settings for training the folder's model: those that a checkpoint or run was trained with, or those
// that import_huggingface writes. Reads no weights.
Settings model_folder_settings(const std::string& folder);

// The folder's tokenizer.json, if it has one.
std::optional<std::filesystem::path> model_folder_tokenizer(const std::filesystem::path& folder);

// Throws UserError unless each token has the same id in both tokenizer.json files: the weights of `folder`
// know the ids of its own tokenizer alone. `data`: the other file, beside the shards.
void require_same_tokenizer(const std::filesystem::path& folder, const std::filesystem::path& data);

// Fills the fp32 weights of a model from a model's folder. Every setting that shapes the function must agree;
// those that don't are named, after the setting that named the folder.
void load_initial_weights(const std::filesystem::path& from, const ModelSettings& model,
                          const std::vector<TensorEntry>& into, const std::string& setting = "train.init");

}  // namespace moelab
