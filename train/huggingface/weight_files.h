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
  // Opens and checks the files. Throws UserError, also for a folder that has pickled weights alone: those are
  // never read.
  explicit HfWeights(const std::filesystem::path& folder);

  bool has(const std::string& name) const { return file_of_.contains(name); }
  // A copy on the CPU.
  at::Tensor tensor(const std::string& name) const { return files_[file_of_.at(name)].tensor(name); }

  // Copies every tensor (F32, BF16 or F16) into the fp32 entry of its name, in place and exactly. Before
  // anything is written, names, types and shapes are compared both ways; what differs is a UserError naming
  // it.
  void restore(const std::vector<TensorEntry>& into) const;

 private:
  void open_shards(const std::filesystem::path& index);
  void check(const std::vector<TensorEntry>& into) const;
  const SafetensorsInfo& info(const std::string& name) const;

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, size_t> file_of_;  // tensor -> position in files_
};

// Writes model.safetensors, or, when that would pass `max_shard_bytes`, shards of at most so many bytes (but
// at least one tensor) and their index, into a folder that has none yet.
void write_hf_weights(const std::filesystem::path& folder, const std::vector<TensorEntry>& tensors,
                      int64_t max_shard_bytes);

}  // namespace moelab
