#pragma once
#include "train/config/settings.h"

namespace moelab {

// Fills in what is derived from other settings where it was left 0 or empty: model.kv_heads and head_dim, the
// memory thresholds of the profile, eval.micro_batch, run.name (the model's preset), run.dir (runs/NAME) and
// checkpoint.dir (run.dir/checkpoints). Resolving twice changes nothing.
Settings resolve(Settings settings);

// The reverse: what equals its derivation becomes 0 or empty again, so that in a resolved run that is changed
// (memory.profile, say) what follows from the changed setting follows it still. resolve(unresolve(s)) is
// resolve(s).
Settings unresolve(Settings settings);

// The true miniature of a run at share `run.scale` = s. With r = sqrt(s), model.d_model, d_expert, head_dim,
// vocab, train.sequence and tokens_per_device are multiplied by r and rounded to the nearest multiple of 8
// (at least 8, never more than they were; so head_dim stays even), memory.limit is multiplied by s and
// rounded down. Layers, heads, experts and the batch stay. Then run.scale is 1, so that nobody scales the
// result again; a name that was not given remembers: PRESET-scale-S.
Settings miniature(Settings settings);

}  // namespace moelab
