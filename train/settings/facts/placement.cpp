#include "train/settings/facts/placement.h"

#include "train/settings/facts/storage.h"

namespace moelab {

std::string_view moved_term(Home home) { return home == Home::host ? "host_bytes" : "nvme_bytes"; }

Home gradient_home(const PlacementSettings& placement, bool cuda) {
  const bool leave = cuda && placement.gradients == Home::device && placement.optimizer != Home::device;
  return leave ? Home::host : placement.gradients;
}

bool uses_home(const Settings& settings, Home home) {
  for (const PlacedState& state : kPlacedStates)
    if (settings.placement.*state.home == home) return true;
  return storage_facts(settings.activations.storage).home == home;
}

std::vector<Cost> state_costs(const Settings& settings, const StateBytes& all) {
  const PlacementSettings& p = settings.placement;
  std::vector<Cost> costs;
  if (p.gradients != Home::device) costs.push_back({moved_term(p.gradients), 2 * all.gradients});
  // an update on the host moves gradients down and weights up; from a file, all state is read and written
  if (p.optimizer == Home::host) costs.push_back({moved_term(p.optimizer), all.gradients + all.weights});
  if (p.optimizer == Home::nvme)
    costs.push_back({moved_term(p.optimizer), 2 * (all.optimizer + all.masters)});
  return costs;
}

double weight_visits(const Settings& settings) {
  return settings.activations.checkpoint == CheckpointMode::segments ? 3 : 2;
}

// Besides its visits, a block's weights are written back by the step.
std::vector<Cost> weight_costs(const Settings& settings, const StateBytes& blocks) {
  const PlacementSettings& p = settings.placement;
  if (p.parameters == Home::device) return {};
  const auto passes = static_cast<double>(settings.train.accumulation);
  std::vector<Cost> costs = {
      {moved_term(p.parameters), (weight_visits(settings) * passes + 1) * blocks.weights}};
  if (p.optimizer == Home::device) costs.push_back({moved_term(p.parameters), 2 * blocks.masters});
  return costs;
}

void check_placement(const Settings& s) {
  for (const PlacedState& state : kPlacedStates)
    require_drive(s, state.key, s.placement.*state.home, s.placement.*state.home);
  require(s.placement.gradients == Home::device || !s.optim.in_backward,
          named("placement.gradients", s.placement.gradients) +
              " with optim.in_backward=true: each gradient is used at once, so none is stored; set "
              "placement.gradients=device");
  const int64_t block = s.placement.nvme_block.count;
  require(block >= 4096 && block <= int64_t{1} << 30 && block % 4096 == 0,
          named("placement.nvme_block", s.placement.nvme_block) +
              ": direct reads and writes need a multiple of 4096 bytes, at most 1GiB");
}

std::vector<Technique> weight_placement_rows() {
  return {
      {"host_weights",
       "the blocks' weights and masters in host memory",
       {{"placement.parameters", "host"}},
       "Each comes to the device for forward, for backward and for its step, and goes back after that.",
       "two blocks' weights for those of all",
       {"vibee.offload_cpu", "ava.cpu_offload"}},
      {"nvme_weights",
       "the blocks' weights and masters in a file",
       {{"placement.parameters", "nvme"}, {"placement.nvme_path", "."}},
       "Each is read from the drive for forward, for backward and for its step, and written after that.",
       "two blocks' weights for those of all",
       {"vibee.offload_nvme"}},
  };
}

std::vector<Technique> state_placement_rows() {
  return {
      {"host_optimizer",
       "optimizer state and masters in host memory, stepped there",
       {{"placement.optimizer", "host"}},
       "On a GPU each gradient goes down and each weight comes up; on the CPU nothing is copied.",
       "8 P of moments, and 4 P of masters in 16 bits, less",
       {"verl.optimizer_offload", "vibee.offload_cpu", "nemo.preset_memory_efficient", "ava.cpu_offload"}},
      {"nvme_optimizer",
       "optimizer state and masters in a file",
       {{"placement.optimizer", "nvme"}, {"placement.nvme_path", "."}},
       "All of it is read from the drive and written back in every step.",
       "8 P of moments, and 4 P of masters in 16 bits, less",
       {"vibee.offload_nvme"}},
      {"host_gradients",
       "gradients in host memory",
       {{"placement.gradients", "host"}},
       "Each is copied there once backward has made it; on a GPU the step copies it back.",
       "the largest gradient for 4 P",
       {"vibee.offload_cpu"}},
      {"nvme_gradients",
       "gradients in a file",
       {{"placement.gradients", "nvme"}, {"placement.nvme_path", "."}},
       "Each is written to the drive in backward and read back by the step.",
       "the largest gradient for 4 P",
       {"vibee.offload_nvme"}},
  };
}

}  // namespace moelab
