#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/config/settings.h"

namespace moelab {

// One technique that a plan may take: a row of the table of techniques by its name, or a way to cut a step's
// rows into micro-batches, "micro-batch 2 x 4".
struct PlanOption {
  std::string name;
  std::function<void(Settings&)> apply;  // makes its changes
  uint64_t excludes = 0;                 // bit i: not beside option i
};

// What may be switched on besides `base`, a resolved run. Left out: what is on already or changes nothing,
// what would train another model or by another rule (model.* and attention.* stay, and so does the update
// rule but for forms of AdamW's state), keys in `pinned`, host memory on the CPU (it is the device's), NVMe
// without placement.nvme_path, fp8 products where the device has none (`fp8_products`: whether it has;
// emulated ones save nothing over bf16), and what `base` refuses by itself. Two exclude each other when they
// set a key to different values, when one's settings are among the other's, or when validate() refuses the
// two together. At most 64.
std::vector<PlanOption> plan_options(const Settings& base, const std::vector<std::string>& pinned,
                                     bool fp8_products);

// Every set of options that may stand together, as bits, the empty one first.
std::vector<uint64_t> admissible_sets(const std::vector<PlanOption>& options);

}  // namespace moelab
