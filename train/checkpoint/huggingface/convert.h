#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint/safetensors_file.h"
#include "train/settings/settings.h"

// Converts between Hugging Face folders and checkpoints. Weights keep their values exactly (16-bit ones
// become the same fp32 numbers); tokenizer.json is copied. All functions throw UserError.
namespace moelab {

// Converts the folder `from` to the checkpoint to/step-0: weights, settings for further training (dropless,
// fp32, the recipe of the family's published preset), no optimizer state. `to` must not exist, or be empty.
// Returns the checkpoint's folder.
std::filesystem::path import_huggingface(const std::filesystem::path& from, const std::filesystem::path& to,
                                         const std::string& commit);

// Converts a checkpoint (step-N, or the newest in a folder of checkpoints) to the Hugging Face folder `to`,
// which must not exist, or be empty. A crash leaves nothing under that name.
void export_huggingface(const std::filesystem::path& from, const std::filesystem::path& to,
                        int64_t max_shard_bytes = 5'000'000'000);

// Below, "model folder" means a Hugging Face folder, a checkpoint step-N, or the newest checkpoint in a
// folder of checkpoints or of a run (in its checkpoints/).

// The settings for training the folder's model: those that a checkpoint or run was trained with, or those
// that import_huggingface would write. Reads no weights.
Settings model_folder_settings(const std::string& folder);

// The folder's tokenizer.json, if it has one.
std::optional<std::filesystem::path> model_folder_tokenizer(const std::filesystem::path& folder);

// Throws UserError unless each token has the same id in both tokenizer.json files: the weights of `folder`
// only know the ids of its own tokenizer. `data`: the other file, beside the shards.
void require_same_tokenizer(const std::filesystem::path& folder, const std::filesystem::path& data);

// Fills a model's fp32 weights from a model folder. Throws UserError unless every setting that shapes the
// model's function agrees; the message starts with `setting`, which named the folder, and lists the
// differences.
void load_initial_weights(const std::filesystem::path& from, const ModelSettings& model,
                          const std::vector<TensorEntry>& into, const std::string& setting = "train.init");

}  // namespace moelab
