#include "bench/estimator/draw.h"

#include <random>

#include "moe/settings/error.h"
#include "train/config/load.h"

namespace moelab {
namespace {

using Choices = std::vector<std::string>;

struct Axis {
  const char* key;
  Choices values;
};

// A value that stands twice is drawn twice as often.
const std::vector<Axis>& axes() {
  static const std::vector<Axis> all = {
      {"model.vocab", {"128", "257", "1000"}},
      {"model.heads", {"2", "4"}},
      {"model.head_dim", {"16", "32"}},
      {"model.d_model", {"32", "64", "96"}},
      {"model.kv_heads", {"1", "2"}},
      {"model.layers", {"1", "3", "5"}},
      {"model.d_expert", {"64", "88", "128"}},
      {"model.experts", {"0", "4", "4", "8"}},
      {"model.experts_per_token", {"1", "2"}},
      {"model.shared_experts", {"0", "0", "1"}},
      {"model.dispatch", {"capacity", "dropless", "onehot"}},
      {"model.router", {"softmax", "softmax", "sigmoid"}},
      {"model.tie_embeddings", {"true", "false"}},
      {"model.qk_norm", {"none", "none", "head", "full"}},
      {"attention.kernel", {"flash", "flash", "materialised", "sliding_window", "block_sparse"}},
      {"attention.window", {"16", "40"}},
      {"attention.block_size", {"16"}},
      {"attention.local_blocks", {"2"}},
      {"precision.compute", {"fp32", "bf16", "bf16", "fp16", "fp8"}},
      {"precision.store", {"compute", "compute", "int8", "fp8"}},
      {"precision.master", {"fp32", "fp32", "none"}},
      {"activations.checkpoint", {"none", "none", "full", "ratio"}},
      {"activations.ratio", {"0.5"}},
      {"activations.pieces",
       {"[]", "[]", "[norms]", "[norms,expert_hidden]", "[attention]", "[moe]", "[attention,moe]"}},
      {"activations.storage", {"keep", "keep", "keep", "int8", "fp8", "host", "nvme"}},
      {"optim.name",
       {"adamw", "adamw", "adam8bit", "adamw_compact", "adam_mini", "lion", "adafactor", "sgd"}},
      {"optim.state", {"fp32", "fp32", "bf16"}},
      {"optim.in_backward", {"false", "false", "true"}},
      {"placement.parameters", {"device", "device", "device", "host", "nvme"}},
      {"placement.gradients", {"device", "device", "device", "host", "nvme"}},
      {"placement.optimizer", {"device", "device", "device", "host", "nvme"}},
      {"train.micro_batch", {"2", "4", "8"}},
      {"train.sequence", {"64", "96", "128"}},
      {"train.accumulation", {"1", "1", "2"}},
      {"eval.batches", {"0", "1"}},
  };
  return all;
}

}  // namespace

Draw draw_settings(uint64_t seed, int64_t number, const std::string& nvme_path) {
  std::seed_seq seeds{seed, static_cast<uint64_t>(number)};
  std::mt19937_64 random(seeds);
  for (;;) {
    Draw draw;
    for (const Axis& axis : axes())
      draw.overrides.push_back(axis.key + ("=" + axis.values[random() % axis.values.size()]));
    draw.overrides.push_back("placement.nvme_path=" + nvme_path);
    try {
      draw.settings = load_settings({.config = "moe-pico", .overrides = draw.overrides});
      return draw;
    } catch (const UserError&) {
      continue;
    }
  }
}

}  // namespace moelab
