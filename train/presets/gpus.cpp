#include "train/presets/presets.h"

namespace moelab {
namespace {

// Every size states all of its keys, so that changing the preset leaves nothing of the previous one behind.
Preset gpu(std::string_view name, std::string_view about, std::string_view limit,
           std::string_view micro_batch, std::string_view accumulation, std::string_view checkpoint) {
  return {name,
          about,
          {{"memory.limit", limit},
           {"train.micro_batch", micro_batch},
           {"train.accumulation", accumulation},
           {"precision.compute", "bf16"},
           {"activations.checkpoint", checkpoint},
           {"activations.layers", "[]"}}};
}

}  // namespace

const std::vector<Preset>& gpu_presets() {
  static const std::vector<Preset> sizes = {
      gpu("gpu-8gb", "8 GiB: bf16, every block recomputed, batch 4 x 4", "8GiB", "4", "4", "full"),
      gpu("gpu-12gb", "12 GiB: bf16, every block recomputed, batch 8 x 2", "12GiB", "8", "2", "full"),
      gpu("gpu-16gb", "16 GiB: bf16, every block recomputed, batch 16", "16GiB", "16", "1", "full"),
      gpu("gpu-24gb", "24 GiB: bf16, batch 32", "24GiB", "32", "1", "none"),
  };
  return sizes;
}

}  // namespace moelab
