#include "train/predict/plan_device.h"

#include <algorithm>

#include "train/predict/estimate.h"
#include "train/settings/convert.h"
#include "train/settings/presets/presets.h"
#include "train/settings/resolve.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

// A card whose memory the run may use to the limit; without bytes if memory.limit is larger.
Gpu card_within(const CostModel& costs, int64_t limit) {
  for (const Gpu& gpu : preset_gpus())
    if (gpu.name == costs.card && gpu.bytes >= limit) return gpu;
  return costs.gpu;
}

bool among(const std::vector<std::string>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

}  // namespace

std::string plan_device_name(const Settings& run) {
  const Card* const card = find_card(run.run.preset);
  if (run.run.device == DeviceChoice::cpu) return "cpu";
  if (card != nullptr) return cost_model_of_card(card->name).device;
  return run.run.device == DeviceChoice::cuda ? "h100" : "cpu";
}

PlanDevice plan_device(const std::string& name, const Settings& run) {
  const CostModel& known = cost_model(name);
  if (known.runs_on == DeviceChoice::cuda) return {known, card_within(known, run.memory.limit.count)};
  if (name != "cpu" || !known.gemm.known()) return {known};
  const Probe probe = probe_cpu(run);
  return {scaled_to(known, probe), {}, probe};
}

Settings plan_base(const Settings& given, const std::vector<std::string>& pinned) {
  if (find_card(given.run.preset) == nullptr) return given;
  Settings base = unresolve(given);
  const Preset::Pairs& preset = find_preset(run_presets(), given.run.preset)->settings;
  const auto open = [&](std::string_view key, auto& value, const auto& plain) {
    const auto set =
        std::find_if(preset.rbegin(), preset.rend(), [&](const auto& p) { return p.first == key; });
    if (set != preset.rend() && set->second == value_text(value) && !among(pinned, key)) value = plain;
  };
  open("precision.compute", base.precision.compute, ComputePrecision::fp32);
  open("activations.checkpoint", base.activations.checkpoint, CheckpointMode::none);
  open("memory.cuda_graphs", base.memory.cuda_graphs, CudaGraphs::none);
  base = resolve(base);
  return is_valid(base) ? base : given;
}

PredictBytes bytes_on(const Gpu& gpu) {
  return [gpu](const Settings& settings) {
    const Estimate needs = estimate(with_few_passes(settings), gpu);
    if (needs.fits(settings.memory.limit.count)) return needs.run.held();
    return gpu.bytes > 0 ? needs.on_card() : needs.needed();
  };
}

PlanSearch search_of(const Settings& base, const std::vector<std::string>& pinned, int64_t best) {
  return {.pinned = pinned, .room = room_of(base.memory), .best = best, .finalists = finalists_for(base)};
}

}  // namespace moelab
