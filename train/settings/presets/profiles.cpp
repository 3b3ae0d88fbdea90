#include "train/settings/presets/profiles.h"

namespace moelab {
namespace {

Preset profile(std::string_view name, std::string_view about, const Preset::Pairs& settings) {
  Preset preset{name, about, plain_run()};
  preset.settings.insert(preset.settings.end(), settings.begin(), settings.end());
  return preset;
}

// Whatever a step does not currently use is in host memory.
const Preset::Pairs on_the_host = {{"activations.checkpoint", "full"},
                                   {"activations.storage", "host"},
                                   {"placement.parameters", "host"},
                                   {"placement.optimizer", "host"}};

// May shrink to a micro-batch of 1: models that need such a profile may fit with no more.
const Preset::Pairs moving_batch = {{"memory.dynamic_batch.enabled", "true"},
                                    {"memory.dynamic_batch.min", "1"}};

Preset::Pairs both(Preset::Pairs pairs, const Preset::Pairs& more) {
  pairs.insert(pairs.end(), more.begin(), more.end());
  return pairs;
}

}  // namespace

Preset::Pairs plain_run() {
  return {{"precision.compute", "bf16"},
          {"precision.tf32", "false"},
          {"activations.checkpoint", "none"},
          {"activations.every", "1"},
          {"activations.layers", "[]"},
          {"activations.pieces", "[]"},
          {"activations.storage", "keep"},
          {"placement.parameters", "device"},
          {"placement.optimizer", "device"},
          {"memory.profile", "balanced"},
          {"memory.cuda_graphs", "none"},
          {"memory.dynamic_batch.enabled", "false"},
          {"memory.dynamic_batch.min", "4"},
          {"sample.share", "0.3"},
          {"reference.placement", "device"},
          {"train.tokens_per_device", "0"},
          {"parallel.zero", "0"},
          {"parallel.tensor", "1"},
          {"parallel.pipeline", "1"},
          {"data.workers", "1"},
          {"data.prefetch", "2"},
          {"data.buffer", "4096"}};
}

std::vector<Preset> run_profiles() {
  return {
      profile(
          "constrained",
          "weights, saved activations and optimizer state on the host; every block recomputed; packed rows "
          "of 4096 tokens; the batch grows with free memory",
          both(both(on_the_host, moving_batch),
               {{"train.tokens_per_device", "4096"}, {"train.micro_batch", "1"}, {"sample.share", "0.3"}})),
      profile("balanced",
              "every block recomputed; everything on the device; the batch grows with free memory",
              both({{"activations.checkpoint", "full"}, {"sample.share", "0.5"}}, moving_batch)),
      profile("multi_device",
              "four ranks to each matrix, also where samples are written, and all others divide the state "
              "(ZeRO-3): as constrained, with a fixed batch and no packing",
              both(on_the_host, {{"sample.share", "0.8"}, {"parallel.zero", "3"}, {"parallel.tensor", "4"}})),
      profile(
          "nemo-memory-efficient",
          "two ranks to each matrix; every fourth block recomputed, norms and expert hidden states in the "
          "others; optimizer on the host",
          {{"activations.checkpoint", "every"},
           {"activations.every", "4"},
           {"activations.pieces", "[norms,expert_hidden]"},
           {"placement.optimizer", "host"},
           {"train.accumulation", "4"},
           {"parallel.tensor", "2"}}),
      // the guide's loss scale of 32768 is where fp16's dynamic scale starts anyway, and bf16 needs none
      profile(
          "nemo-large-model",
          "four ranks to each matrix in two stages of a pipeline; every second block recomputed, activations "
          "and optimizer in host memory",
          {{"activations.checkpoint", "every"},
           {"activations.every", "2"},
           {"activations.storage", "host"},
           {"placement.optimizer", "host"},
           {"parallel.tensor", "4"},
           {"parallel.pipeline", "2"}}),
      profile("memory-optimized", "6 GB for moe-nano: bf16, every block recomputed, batch 8 x 2",
              {{"activations.checkpoint", "full"},
               {"memory.limit", "6GB"},
               {"train.micro_batch", "8"},
               {"train.accumulation", "2"}}),
  };
}

Thresholds profile_thresholds(MemoryProfile profile) {
  switch (profile) {
    case MemoryProfile::aggressive:
      return {0.92, 0.94, 0.96, 0.98};
    case MemoryProfile::balanced:
      break;
    case MemoryProfile::conservative:
      return {0.85, 0.88, 0.92, 0.95};
  }
  return {0.90, 0.92, 0.95, 0.97};
}

}  // namespace moelab
