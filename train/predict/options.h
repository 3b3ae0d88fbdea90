#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/predict/layouts.h"
#include "train/settings/settings.h"

namespace moelab {

// What a plan may add: a row of the technique table, by its name; a way to split a step's rows into
// micro-batches, "micro-batch 2 x 4"; or a layout of the ranks, by its settings, "parallel.zero=1".
struct PlanOption {
  std::string name;
  std::function<void(Settings&)> apply;  // applies its changes
  uint64_t excludes = 0;                 // bit i: cannot be combined with option i
};

// The techniques and, with several ranks, those of `layouts` that may be added to `base`, a resolved run; at
// most 64. Left out:
// - what is on already or changes nothing;
// - what would train another model or use another rule (model.* and attention.* stay; the update rule may
// only change between AdamW's forms);
// - keys in `pinned`;
// - host memory on the CPU, where the device's memory is the host's;
// - NVMe without placement.nvme_path;
// - fp8 products where `fp8_products` is false, since emulated ones save nothing over bf16, and on a GPU
// while they are slow there (ComputeFacts::slow_on_gpu);
// - what `base` alone refuses.
// Two layouts exclude each other, and two options when they set a key to different values, when one's
// settings include the other's, or when validate() refuses the pair.
std::vector<PlanOption> plan_options(const Settings& base, const std::vector<std::string>& pinned,
                                     bool fp8_products, const std::vector<RankLayoutOption>& layouts);
// … with the layouts along the data axis alone.
std::vector<PlanOption> plan_options(const Settings& base, const std::vector<std::string>& pinned,
                                     bool fp8_products);

// Every set of options that can be combined, as bit masks, the empty set first.
std::vector<uint64_t> admissible_sets(const std::vector<PlanOption>& options);

}  // namespace moelab
