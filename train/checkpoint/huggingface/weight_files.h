#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "train/checkpoint/safetensors_file.h"

namespace moelab {

// The weights in a Hugging Face folder: model.safetensors, or the shards that model.safetensors.index.json
// lists.
class HfWeights {
 public:
  // Opens and checks the files. Throws UserError, also for a folder with only pickled weights, which are
  // never read.
  explicit HfWeights(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  size_t size() const { return file_of_.size(); }  // tensors
  bool has(const std::string& name) const { return file_of_.contains(name); }
  // A copy on the CPU.
  at::Tensor tensor(const std::string& name) const { return files_[file_of_.at(name)].tensor(name); }

  // Compares names, types and shapes in both directions. Throws UserError that names the first difference.
  void check(const std::vector<TensorEntry>& into) const;
  // Copies every tensor (F32, BF16 or F16) into the fp32 entry of its name, in place and exactly, after
  // check().
  void restore(const std::vector<TensorEntry>& into) const;

 private:
  void open_shards(const std::filesystem::path& index);
  const SafetensorsInfo& info(const std::string& name) const;

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, size_t> file_of_;  // tensor -> position in files_
};

// Writes model.safetensors. If that would exceed `max_shard_bytes`, writes shards of at most that size (but
// at least one tensor) and their index instead. The folder must not have any of these files yet.
void write_hf_weights(const std::filesystem::path& folder, const std::vector<TensorEntry>& tensors,
                      int64_t max_shard_bytes);

}  // namespace moelab
