#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/memory/ledger.h"
#include "train/config/facts/cost.h"
#include "train/config/facts/require.h"
#include "train/config/facts/technique.h"
#include "train/config/settings.h"

// What each home of training state says of itself, and each state that has one.
namespace moelab {

// The term of the cost model for a byte moved between the device and this home, which is not the device.
std::string_view moved_term(Home home);

// Throws UserError where `key`, set to `value`, lies on a drive that placement.nvme_path does not name.
template <class T>
void require_drive(const Settings& settings, std::string_view key, const T& value, Home home) {
  require(home != Home::nvme || !settings.placement.nvme_path.empty(),
          named(key, value) + " with placement.nvme_path=; name a folder on the drive there");
}

// A part of the training state that a setting gives a home.
struct PlacedState {
  std::string_view key;  // "placement.optimizer"
  Home PlacementSettings::*home;
};
inline constexpr std::array<PlacedState, 3> kPlacedStates = {
    {{"placement.parameters", &PlacementSettings::parameters},
     {"placement.gradients", &PlacementSettings::gradients},
     {"placement.optimizer", &PlacementSettings::optimizer}}};

// Whether activations or a part of the training state lie in `home`.
bool uses_home(const Settings& settings, Home home);

// Bytes of training state in each form, wherever they lie.
struct StateBytes {
  double weights = 0;    // as products read them, between uses
  double masters = 0;    // fp32 beside 16-bit weights
  double gradients = 0;  // of all of them
  double optimizer = 0;  // the rule's state
};

// What moving state costs in a step: gradients and optimizer state of all weights, and the blocks' weights.
std::vector<Cost> state_costs(const Settings& settings, const StateBytes& all);
std::vector<Cost> weight_costs(const Settings& settings, const StateBytes& blocks);

// Throws UserError for what placement.* cannot stand beside.
void check_placement(const Settings& settings);

// Rows of the table of techniques: of the blocks' weights, and of optimizer state and gradients.
std::vector<Technique> weight_placement_rows();
std::vector<Technique> state_placement_rows();

}  // namespace moelab
