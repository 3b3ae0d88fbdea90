#include "train/predict/techniques/run_rows.h"

#include <algorithm>
#include <array>

namespace moelab {
namespace {

// Groups of settings whose techniques leave the trained model's step as it is.
constexpr std::array<std::string_view, 4> kBeside = {"data.", "memory.", "sample.", "reference."};

}  // namespace

std::vector<Technique> run_rows() {
  return {
      {"thresholds",
       "thresholds that let tensors take 92 % of memory.limit",
       {{"memory.profile", "aggressive"}},
       "The micro-batch shrinks later, at 96 % of the limit.",
       "none before memory runs short",
       {"ava.memory_thresholds", "ava.thresholds_aggressive"}},
      {"packing",
       "flash attention over whole documents packed into one row",
       {{"attention.kernel", "flash"}, {"train.tokens_per_device", "2048"}, {"train.micro_batch", "1"}},
       "Documents see nothing of each other, and those longer than train.sequence are cut; a few places at a "
       "row's end stay empty.",
       "as flash attention, and on the host 4 a token more",
       {"verl.dynamic_batch_size"}},
      {"dynamic_batch",
       "a micro-batch that follows free memory",
       {{"memory.dynamic_batch.enabled", "true"},
        {"memory.dynamic_batch.min", "1"},
        {"memory.dynamic_batch.every", "1"}},
       "The micro-batch changes between steps, and with it how sums round.",
       "none at first; with a memory.limit and accumulation, what up to twice the micro-batch takes",
       {"ava.dynamic_batching"}},
      {"host_reference",
       "with reference.path, the blocks of that model in host memory",
       {{"reference.placement", "host"}},
       "Each of its blocks comes to the device in every forward pass.",
       "two of the reference's blocks for all of them",
       {"verl.parameter_offload", "verl.profile_multi_device"}},
      {"read_ahead",
       "eight workers that each read two batches ahead",
       {{"data.workers", "8"}, {"data.prefetch", "2"}},
       "Threads that wait for the disk instead of the step.",
       "17 batches of 8 bytes a token and 8 a target in host memory; none on the device",
       {"ava.data_pipeline"}},
      {"jemalloc",
       "jemalloc instead of the system's malloc",
       {{"memory.host_allocator", "jemalloc"}},
       "A library beside the program; tensors of 128 KiB or more have an allocator of their own anyway.",
       "none of tensors; the host's small blocks come from other pools",
       {"verl.host_allocator"}},
      {"tcmalloc",
       "tcmalloc instead of the system's malloc",
       {{"memory.host_allocator", "tcmalloc"}},
       "A library beside the program; tensors of 128 KiB or more have an allocator of their own anyway.",
       "none of tensors; the host's small blocks come from other pools",
       {"verl.host_allocator"}},
      {"sampling",
       "a text written every other step",
       {{"sample.every", "2"}, {"sample.prompt", "def "}},
       "Training waits while texts are written.",
       "keys and values of texts; with a memory.limit, what sample.share leaves beside the weights and a "
       "pass",
       {"verl.inference_memory_share", "verl.rollout_limits"}},
      {"empty_cache",
       "unused memory given back after each step",
       {{"memory.empty_cache_every", "1"}},
       "The next step asks the system for all of it again.",
       "none of tensors; what the allocator keeps between steps",
       {"ava.oom_after_steps", "ava.oom_at_times"}},
  };
}

bool changes_a_step(const Technique& technique) {
  const auto is_beside = [](std::string_view key) {
    return std::any_of(kBeside.begin(), kBeside.end(), [&](auto group) { return key.starts_with(group); });
  };
  return !packs(technique) && !std::all_of(technique.settings.begin(), technique.settings.end(),
                                           [&](const auto& pair) { return is_beside(pair.first); });
}

bool packs(const Technique& technique) {
  return std::any_of(technique.settings.begin(), technique.settings.end(),
                     [](const auto& pair) { return pair.first == kPackedTokens; });
}

}  // namespace moelab
