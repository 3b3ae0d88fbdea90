#include <algorithm>
#include <array>

#include "train/settings/presets/presets.h"
#include "train/settings/presets/profiles.h"

namespace moelab {
namespace {

struct Size {
  std::string_view name, about, limit, micro_batch, accumulation;
  std::string_view compute = "bf16", checkpoint = "none", profile = "balanced";
  std::string_view sequence = {};  // empty: the model's
};

// Starts from plain_run(), so that changing the preset leaves nothing of the previous one behind.
Preset gpu(const Size& size) {
  Preset preset{size.name, size.about, plain_run()};
  preset.settings.insert(preset.settings.end(), {{"memory.limit", size.limit},
                                                 {"memory.profile", size.profile},
                                                 {"train.micro_batch", size.micro_batch},
                                                 {"train.accumulation", size.accumulation},
                                                 {"precision.compute", size.compute},
                                                 {"activations.checkpoint", size.checkpoint}});
  if (!size.sequence.empty()) preset.settings.emplace_back("train.sequence", size.sequence);
  return preset;
}

// Cards by memory size. The guide that these figures come from uses models of 4 experts.
std::vector<Preset> by_memory() {
  return {
      gpu({"gpu-8gb", "8 GiB: bf16, every block recomputed, batch 4 x 4", "8GiB", "4", "4", "bf16", "full"}),
      gpu({"gpu-12gb", "12 GiB: bf16, every block recomputed, batch 8 x 2", "12GiB", "8", "2", "bf16",
           "full"}),
      gpu({"gpu-16gb", "16 GiB: bf16, every block recomputed, batch 16", "16GiB", "16", "1", "bf16", "full"}),
      gpu({"gpu-24gb", "24 GiB: bf16, batch 32", "24GiB", "32", "1"}),
  };
}

// Cards by name, each with a sequence length, for models of 8 experts. The guide that these figures come from
// recomputes for models above 500M parameters or sequences longer than 512, and lets the largest cards fill
// to 92 %.
std::vector<Preset> by_name() {
  std::vector<Preset> presets = {
      gpu({"gpu-rtx3090", "24 GiB: fp16, batch 12 x 4 of 256 tokens", "24GiB", "12", "4", "fp16", "none",
           "balanced", "256"}),
      gpu({"gpu-rtx4090", "24 GiB: fp16, batch 16 x 4 of 512 tokens", "24GiB", "16", "4", "fp16", "none",
           "balanced", "512"}),
      gpu({"gpu-a100-40gb", "40 GiB: bf16, batch 8 x 4 of 512 tokens", "40GiB", "8", "4", "bf16", "none",
           "balanced", "512"}),
      gpu({"gpu-a100-80gb", "80 GiB: bf16, every block recomputed, batch 4 x 8 of 2048 tokens", "80GiB", "4",
           "8", "bf16", "full", "aggressive", "2048"}),
      gpu({"gpu-h100-80gb",
           "80 GiB: bf16 with TF32, captured steps, every block recomputed, batch 6 x 8 of 4096 tokens",
           "80GiB", "6", "8", "bf16", "full", "aggressive", "4096"}),
  };
  for (Preset& preset : presets) {
    preset.settings.insert(preset.settings.end(),
                           {{"data.workers", "8"}, {"data.prefetch", "2"}, {"data.buffer", "30000"}});
  }
  Preset& h100 = presets.back();
  h100.settings.insert(h100.settings.end(), {{"precision.tf32", "true"}, {"memory.cuda_graphs", "step"}});
  return presets;
}

std::vector<Preset> make_presets() {
  std::vector<Preset> presets = by_memory();
  for (const auto& more : {by_name(), run_profiles()})
    presets.insert(presets.end(), more.begin(), more.end());
  return presets;
}

}  // namespace

// The presets by memory have Ada's cards of that size. Compute capabilities:
// https://developer.nvidia.com/cuda-gpus
const Card* find_card(std::string_view preset) {
  static constexpr std::array<Card, 9> cards = {{{"gpu-8gb", "RTX 4060", 89},
                                                 {"gpu-12gb", "RTX 4070", 89},
                                                 {"gpu-16gb", "RTX 4080", 89},
                                                 {"gpu-24gb", "RTX 4090", 89},
                                                 {"gpu-rtx3090", "RTX 3090", 86},
                                                 {"gpu-rtx4090", "RTX 4090", 89},
                                                 {"gpu-a100-40gb", "A100 40 GB", 80},
                                                 {"gpu-a100-80gb", "A100 80 GB", 80},
                                                 {"gpu-h100-80gb", "H100 80 GB", 90}}};
  const auto found =
      std::find_if(cards.begin(), cards.end(), [&](const Card& card) { return card.preset == preset; });
  return found == cards.end() ? nullptr : &*found;
}

const std::vector<Preset>& run_presets() {
  static const std::vector<Preset> presets = make_presets();
  return presets;
}

}  // namespace moelab
