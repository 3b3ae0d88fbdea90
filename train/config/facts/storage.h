#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/memory/ledger.h"
#include "kernels/quantize.h"
#include "train/config/facts/cost.h"
#include "train/config/facts/technique.h"
#include "train/config/settings.h"

// What each activations.storage says of itself: a form, and the home where it waits for backward.
namespace moelab {

struct StorageFacts {
  ActivationStorage name;
  std::optional<BlockCode> code;  // none: bit for bit
  Home home;
  std::optional<Technique> row = {};  // of the table of techniques; none: of the baseline
};
const StorageFacts& storage_facts(ActivationStorage storage);
std::vector<Technique> storage_rows();

// Of `bytes` that autograd saved, those that lie in `home` between forward and backward.
double stored_bytes(const Settings& settings, double bytes, Home home);

// What storing and reading `bytes` costs.
std::vector<Cost> storage_costs(const Settings& settings, double bytes);

// Throws UserError for what activations.storage cannot stand beside.
void check_storage(const Settings& settings);

}  // namespace moelab
