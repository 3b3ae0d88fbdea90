#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/memory/ledger.h"
#include "train/settings/facts/cost.h"
#include "train/settings/facts/require.h"
#include "train/settings/facts/technique.h"
#include "train/settings/settings.h"

// Facts about each home of training state, and about each part of the state that has a home.
namespace moelab {

// The cost-model term for a byte moved between the device and `home`; `home` is not the device.
std::string_view moved_term(Home home);

// Throws UserError if `home`, the home of `key`=`value`, is nvme and placement.nvme_path is empty.
template <class T>
void require_drive(const Settings& settings, std::string_view key, const T& value, Home home) {
  require(
      home != Home::nvme || !settings.placement.nvme_path.empty(),
      named(key, value) + " with placement.nvme_path=: name a folder on the drive in placement.nvme_path");
}

// A part of the training state whose home is a setting.
struct PlacedState {
  std::string_view key;  // "placement.optimizer"
  Home PlacementSettings::*home;
};
inline constexpr std::array<PlacedState, 3> kPlacedStates = {
    {{"placement.parameters", &PlacementSettings::parameters},
     {"placement.gradients", &PlacementSettings::gradients},
     {"placement.optimizer", &PlacementSettings::optimizer}}};

// Where gradients lie between backward and the update: on CUDA they leave for an optimizer that is not there.
Home gradient_home(const PlacementSettings& placement, bool cuda);

// True if activations or a part of the training state are placed in `home`.
bool uses_home(const Settings& settings, Home home);

// Bytes of each part of the training state, in any home.
struct StateBytes {
  double weights = 0;    // in the form that products read, between uses
  double masters = 0;    // fp32 copies of 16-bit weights
  double gradients = 0;  // of all weights
  double optimizer = 0;  // the update rule's state
};

// How often a micro-batch needs the blocks' weights on the device: in forward, in backward, and once more to
// run a segment again.
double weight_visits(const Settings& settings);

// What moving state costs per step: gradients and optimizer state of all weights; and the blocks' weights.
std::vector<Cost> state_costs(const Settings& settings, const StateBytes& all);
std::vector<Cost> weight_costs(const Settings& settings, const StateBytes& blocks);

// Throws UserError when placement.* conflicts with another setting.
void check_placement(const Settings& settings);

// Rows of the technique table: placing the blocks' weights; placing optimizer state and gradients.
std::vector<Technique> weight_placement_rows();
std::vector<Technique> state_placement_rows();

}  // namespace moelab
