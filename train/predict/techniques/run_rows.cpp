#include "train/predict/techniques/run_rows.h"

namespace moelab {

std::vector<Technique> run_rows() {
  return {
      {"bf16_gradient_sums",
       "a quarter of the micro-batch, accumulated in bf16; bf16 compute",
       {{"precision.compute", "bf16"},
        {"train.micro_batch", "2"},
        {"train.accumulation", "4"},
        {"precision.gradient_sums", "bf16"}},
       "Sums of gradients round to 8 bits of precision at each micro-batch.",
       "as bf16, with a quarter of T and R; 2 P of gradients are held throughout, for 4 P summed in fp32",
       {"ava.smaller_batch", "vibee.fits_7b_on_24gb"}},
      {"packing",
       "whole documents packed into rows of 2048 tokens, flash attention",
       {{"train.tokens_per_device", "2048"}, {"train.micro_batch", "1"}, {"attention.kernel", "flash"}},
       "Rows end in padding where no document fits; a token sees its own document alone.",
       "T of 2048, whatever the documents' lengths; and as flash attention",
       {"verl.dynamic_batch_size"}},
      {"dynamic_batch",
       "a micro-batch of 4, doubled each step while memory allows",
       {{"train.micro_batch", "4"},
        {"train.accumulation", "2"},
        {"memory.dynamic_batch.enabled", "true"},
        {"memory.dynamic_batch.min", "1"},
        {"memory.dynamic_batch.max", "8"},
        {"memory.dynamic_batch.every", "1"}},
       "Steps take the same rows; their peak is that of the largest micro-batch that fits.",
       "of T and R what memory.limit has room for",
       {"ava.dynamic_batching"}},
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
       "16 batches of 8 bytes a token and target in host memory; none on the device",
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
       "a text written every other step, in 30 % of a limit of 4 GiB",
       {{"sample.every", "2"}, {"sample.prompt", "def "}, {"sample.share", "0.3"}, {"memory.limit", "4GiB"}},
       "Training waits while texts are written.",
       "keys and values of texts, as many as their share holds beside the weights and a pass",
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
