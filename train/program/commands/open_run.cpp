#include "train/program/commands/open_run.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <thread>

#include "kernels/memory/device_memory.h"
#include "moe/settings/error.h"
#include "train/checkpoint/huggingface/convert.h"
#include "train/data/packed_rows.h"
#include "train/data/token_stream.h"
#include "train/data/tokenizer/tokenizer.h"
#include "train/predict/caching_allocator.h"
#include "train/program/commands/device_choice.h"
#include "train/program/record/progress.h"

namespace moelab {

void use_threads(const Settings& settings) {
  const int64_t cores = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  at::set_num_threads(static_cast<int>(settings.run.threads > 0 ? settings.run.threads : cores));
}

c10::Device open_device(const Settings& settings, const World& world) {
  use_threads(settings);
  at::globalContext().setDeterministicAlgorithms(settings.run.deterministic, false);
  // else LibTorch would fill each new tensor with NaN, which takes as long as writing the tensor
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  const c10::Device device = choose_device(settings.run.device, world).device;
  if (device.is_cpu()) return device;
  c10::CachingAllocator::setAllocatorSettings(allocator_configuration(settings.memory));
  at::globalContext().setAllowTF32CuBLAS(settings.precision.tf32);
  // else cuBLAS may add the parts of a long sum in 16 bits
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  return device;
}

c10::Device limited_device(const Settings& settings) {
  const c10::Device device = open_device(settings);
  set_limit(device, settings.memory.limit.count);
  return device;
}

namespace {

// Bytes as tokens in a model for a large vocabulary are trained without a word of what they waste.
void warn_of_bytes(const Settings& settings, const Dataset& data) {
  constexpr int64_t kBytes = 256;
  const ModelSettings& model = settings.model;
  for (const Source& source : data.train)
    if (source.tokens.largest_id().value_or(kBytes) >= kBytes || model.vocab <= 2 * kBytes) return;
  const int64_t spared = (model.vocab - kBytes) * model.d_model * (model.tie_embeddings ? 1 : 2);
  std::cout << "warning: token ids above 255 never occur in data.path=" << settings.data.path
            << ", and model.vocab=" << model.vocab << "; if these are bytes, model.vocab=256 saves "
            << human_count(spared) << " parameters" << std::endl;
}

}  // namespace

Dataset open_data(const Settings& settings) {
  if (settings.data.path.empty()) {
    throw UserError(
        "data.path is not set: give a folder of token shards, as scripts/prepare_data.py makes them "
        "(data.path=data/my-text)");
  }
  Dataset data = open_dataset(settings.data.path, settings.data.validation, settings.model.vocab,
                              settings.train.sequence);
  warn_of_bytes(settings, data);
  if (settings.train.init.empty()) return data;
  if (data.tokenizer) {
    require_same_tokenizer(settings.train.init, *data.tokenizer);
  } else {
    data.tokenizer = model_folder_tokenizer(settings.train.init);
  }
  return data;
}

bool tokens_are_bytes(const Dataset& data) {
  try {
    return data.tokenizer && Tokenizer::load(*data.tokenizer).bytes_alone();
  } catch (const UserError&) {  // one that moelab cannot read; training does without
    return false;
  }
}

std::unique_ptr<const RowSource> open_rows(const Settings& settings, const Dataset& data,
                                           c10::Device device) {
  const TrainSettings& train = settings.train;
  const bool pinned = settings.data.pin && device.is_cuda();
  if (train.tokens_per_device == 0) return window_rows(data.train, train.sequence, train.seed, pinned);
  const std::string key = "train.tokens_per_device=" + std::to_string(train.tokens_per_device);
  if (!data.tokenizer) {
    throw UserError(key +
                    ": packing must know which token ends a document, and there is no tokenizer.json beside "
                    "the shards of data.path; " +
                    "scripts/prepare_data.py writes one");
  }
  const std::optional<int64_t> end = end_of_text(Tokenizer::load(*data.tokenizer));
  if (!end) {
    throw UserError(key + ": " + data.tokenizer->string() +
                    " has no token that ends a document, such as <|endoftext|>");
  }
  const int64_t longest = std::min(train.sequence, train.tokens_per_device);
  return std::make_unique<PackedRows>(
      data.train,
      PackingOptions{train.tokens_per_device, longest, settings.data.buffer, *end, train.seed, pinned});
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw UserError("cannot read " + path.string());
  return text.str();
}

}  // namespace moelab
