#include "train/checkpoint/huggingface/weight_files.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/memory/ledger.h"
#include "moe/settings/error.h"
#include "train/io/json_text.h"

namespace moelab {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 1 << 28;

[[noreturn]] void refuse_folder(const fs::path& folder) {
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error)) {
    const std::string kind = file.path().extension().string();
    if (kind == ".bin" || kind == ".pt" || kind == ".pth") {
      throw UserError(file.path().string() +
                      ": pickled weights are not read, because loading them runs code; save " +
                      folder.filename().string() + " as safetensors first");
    }
  }
  throw UserError(folder.string() + ": has neither " + kSingle + " nor " + kIndex);
}

// True for the name of a file in the same folder.
bool plain_shard_name(const std::string& name) {
  return name.find('/') == name.npos && name.find('\0') == name.npos && name.ends_with(".safetensors");
}

bool readable(SafetensorsType type) {
  return type == SafetensorsType::f32 || type == SafetensorsType::bf16 || type == SafetensorsType::f16;
}

std::vector<std::vector<TensorEntry>> split(const std::vector<TensorEntry>& tensors, int64_t max_bytes) {
  std::vector<std::vector<TensorEntry>> shards(1);
  int64_t bytes = 0;
  for (const TensorEntry& entry : tensors) {
    const auto size = static_cast<int64_t>(entry.tensor.nbytes());
    if (!shards.back().empty() && bytes + size > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += size;
    shards.back().push_back(entry);
  }
  return shards;
}

}  // namespace

HfWeights::HfWeights(const fs::path& folder) : folder_(folder) {
  if (fs::exists(folder / kSingle)) {
    files_.emplace_back(folder / kSingle);
    for (const SafetensorsInfo& info : files_[0].header().tensors) file_of_[info.name] = 0;
  } else if (fs::exists(folder / kIndex)) {
    open_shards(folder / kIndex);
  } else {
    refuse_folder(folder);
  }
}

void HfWeights::open_shards(const fs::path& index) {
  const json parsed = parse_json(read_text_file(index, kMaxIndexBytes), index.string());
  if (!parsed.is_object() || !parsed.contains("weight_map") || !parsed["weight_map"].is_object()) {
    throw UserError(index.string() + ": has no weight_map");
  }
  std::unordered_map<std::string, size_t> opened;
  for (const auto& [name, file] : parsed["weight_map"].items()) {
    const std::string shard = file.is_string() ? file.get<std::string>() : "";
    if (!plain_shard_name(shard)) {
      throw UserError(index.string() + ": " + in_quotes(name) +
                      " is not in a .safetensors file of the folder");
    }
    const auto [position, is_new] = opened.try_emplace(shard, files_.size());
    if (is_new) files_.emplace_back(folder_ / shard);
    if (!files_[position->second].header().find(name)) {
      throw UserError(index.string() + ": " + in_quotes(name) + " is not in " + shard);
    }
    file_of_[name] = position->second;
  }
}

const SafetensorsInfo& HfWeights::info(const std::string& name) const {
  return *files_[file_of_.at(name)].header().find(name);
}

void HfWeights::check(const std::vector<TensorEntry>& into) const {
  std::unordered_map<std::string, const at::Tensor*> wanted;
  for (const TensorEntry& entry : into) {
    wanted[entry.name] = &entry.tensor;
    if (!has(entry.name)) throw UserError(folder_.string() + ": lacks the tensor " + in_quotes(entry.name));
    const SafetensorsInfo& found = info(entry.name);
    if (found.shape == entry.tensor.sizes().vec() && readable(found.type)) continue;
    throw UserError(folder_.string() + ": tensor " + in_quotes(entry.name) + " is " +
                    describe(found.type, found.shape) + "; expected " +
                    describe(SafetensorsType::f32, entry.tensor.sizes()) + ", or BF16 or F16");
  }
  for (const auto& [name, file] : file_of_) {
    if (wanted.contains(name)) continue;
    throw UserError(folder_.string() + ": tensor " + in_quotes(name) +
                    " is not part of the model that config.json describes");
  }
}

void HfWeights::restore(const std::vector<TensorEntry>& into) const {
  check(into);
  const HomeScope host(Home::host);  // for the copies made by conversion
  for (const TensorEntry& entry : into) {
    const SafetensorsFile& file = files_[file_of_.at(entry.name)];
    const SafetensorsInfo& found = info(entry.name);
    if (found.type == SafetensorsType::f32) {
      file.copy_to(found, entry.tensor);
    } else {
      const at::NoGradGuard no_grad;
      entry.tensor.copy_(file.tensor(entry.name));
    }
  }
}

void write_hf_weights(const fs::path& folder, const std::vector<TensorEntry>& tensors,
                      int64_t max_shard_bytes) {
  const SafetensorsMetadata metadata = {{"format", "pt"}};  // transformers requires it
  const auto shards = split(tensors, max_shard_bytes);
  if (shards.size() == 1) {
    write_safetensors(folder / kSingle, tensors, metadata);
    return;
  }
  nlohmann::json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", json::object()}};
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(folder / name, shards[i], metadata);
    for (const TensorEntry& entry : shards[i]) {
      index["weight_map"][entry.name] = name;
      total += static_cast<int64_t>(entry.tensor.nbytes());
    }
  }
  index["metadata"]["total_size"] = total;
  write_text_file(folder / kIndex, index.dump(2) + "\n");
}

}  // namespace moelab
