#include "train/run/open_run.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "kernels/memory/cuda_stats.h"
#include "moe/settings/error.h"

namespace moelab {

void use_threads(const Settings& settings) {
  const int64_t cores = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  at::set_num_threads(static_cast<int>(settings.run.threads > 0 ? settings.run.threads : cores));
}

c10::Device open_device(const Settings& settings) {
  // The MoE operators have no CUDA kernels yet, so auto is the CPU with or without a GPU.
  if (settings.run.device == DeviceChoice::cuda) {
    throw UserError("run.device=cuda: the MoE operators have no CUDA kernels yet; use run.device=cpu");
  }
  use_threads(settings);
  at::globalContext().setDeterministicAlgorithms(settings.run.deterministic, false);
  return at::kCPU;
}

c10::Device limited_device(const Settings& settings) {
  const c10::Device device = open_device(settings);
  set_limit(device, settings.memory.limit.count);
  return device;
}

Dataset open_data(const Settings& settings) {
  if (settings.data.path.empty()) {
    throw UserError(
        "data.path is not set: give a folder of token shards, as scripts/prepare_data.py makes them "
        "(data.path=data/my-text)");
  }
  return open_dataset(settings.data.path, settings.data.validation, settings.model.vocab,
                      settings.train.sequence);
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw UserError("cannot read " + path.string());
  return text.str();
}

}  // namespace moelab
