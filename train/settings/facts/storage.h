#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/formats/quantize.h"
#include "kernels/memory/ledger.h"
#include "train/settings/facts/cost.h"
#include "train/settings/facts/technique.h"
#include "train/settings/settings.h"

// Facts about each value of activations.storage: the form of a saved activation, and its home until backward.
namespace moelab {

struct StorageFacts {
  ActivationStorage name;
  std::optional<BlockCode> code;  // none: exact copies
  Home home;
  std::optional<Technique> row = {};  // in the technique table; none for the baseline's storage
};
const StorageFacts& storage_facts(ActivationStorage storage);
std::vector<Technique> storage_rows();

// How many of `bytes` that autograd saved are in `home` between forward and backward.
double stored_bytes(const Settings& settings, double bytes, Home home);

// The cost of storing and reading back `bytes`.
std::vector<Cost> storage_costs(const Settings& settings, double bytes);

// Throws UserError when activations.storage conflicts with another setting.
void check_storage(const Settings& settings);

}  // namespace moelab
