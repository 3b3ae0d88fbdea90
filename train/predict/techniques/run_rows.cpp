#include "train/predict/techniques/run_rows.h"

namespace moelab {

std::vector<Technique> run_rows() {
  return {
      {"thresholds",
       "thresholds that let tensors take 92 % of memory.limit",
       {{"memory.profile", "aggressive"}},
       "The micro-batch shrinks later, at 96 % of the limit.",
       "none before memory runs short",
       {"ava.memory_thresholds", "ava.thresholds_aggressive"}},
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
  for (const auto& [key, value] : technique.settings)
    if (!key.starts_with("data.") && !key.starts_with("memory.") && !key.starts_with("sample.")) return true;
  return false;
}

}  // namespace moelab
