#include "train/predict/gpu.h"

#include <algorithm>

#include "train/settings/convert.h"
#include "train/settings/presets/presets.h"

namespace moelab {
namespace {

int64_t memory_limit(const Preset& preset) {
  Bytes limit;
  for (const auto& [key, value] : preset.settings)
    if (key == "memory.limit") read_value({Value::Kind::argument, std::string(value), {}, 0}, {}, limit);
  return limit.count;
}

Gpu gpu_of(const Preset& preset, const Card& card) {
  return {std::string(card.name), card.capability, memory_limit(preset)};
}

}  // namespace

std::vector<Gpu> preset_gpus() {
  std::vector<Gpu> gpus;
  for (const Preset& preset : run_presets()) {
    const Card* const card = find_card(preset.name);
    const bool again = card != nullptr && std::any_of(gpus.begin(), gpus.end(), [&](const Gpu& other) {
                         return other.name == card->name;
                       });
    if (card != nullptr && !again) gpus.push_back(gpu_of(preset, *card));
  }
  return gpus;
}

Gpu gpu_of_preset(const Settings& settings) {
  const Card* const card = find_card(settings.run.preset);
  return card == nullptr ? Gpu{} : gpu_of(*find_preset(run_presets(), settings.run.preset), *card);
}

std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

std::string text_of(const Gpu& gpu) {
  return gpu.name + " (compute capability " + capability_text(gpu.capability) + ")";
}

int64_t workspace_bytes(const Gpu& gpu) {
  constexpr int64_t kThreads = 2, kKiB = 1 << 10;
  return kThreads * (gpu.capability >= kHopper ? 8 * 4096 * kKiB : 2 * 4096 * kKiB + 8 * 16 * kKiB);
}

}  // namespace moelab
