#pragma once
#include "train/settings/settings.h"

namespace moelab {

// Fills in settings left 0 or empty that derive from others: model.kv_heads and head_dim, the memory
// thresholds of the profile, eval.micro_batch, run.name (the model's preset), run.dir (runs/NAME) and
// checkpoint.dir (run.dir/checkpoints). On the CPU, which has no CUDA graphs, memory.cuda_graphs becomes
// none. Resolving twice changes nothing.
Settings resolve(Settings settings);

// The reverse: a setting that equals its derived value becomes 0 or empty again. So when a setting of a
// resolved run changes (memory.profile, say), the settings derived from it still follow.
// resolve(unresolve(s)) equals resolve(s).
Settings unresolve(Settings settings);

// A scaled-down copy of a run, at share `run.scale` = s. With r = sqrt(s), model.d_model, d_expert, head_dim,
// vocab, train.sequence and tokens_per_device are multiplied by r and rounded to the nearest multiple of 8
// (at least 8, never above the original; so head_dim stays even). memory.limit is multiplied by s and rounded
// down. Layers, heads, experts and the batch stay. run.scale becomes 1, so that the result is not scaled
// again; if no run.name was given, it becomes PRESET-scale-S.
Settings miniature(Settings settings);

}  // namespace moelab
