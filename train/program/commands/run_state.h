#pragma once
#include "train/checkpoint/checkpoint.h"
#include "train/data/dataset.h"
#include "train/memory/manager.h"
#include "train/settings/settings.h"
#include "train/step/trainer.h"

namespace moelab {

// What a run saves after `step` steps and `tokens` tokens: weights, optimizer state, loss scale, how its
// steps are split into micro-batches, its settings, its tokenizer and the program's commit.
CheckpointContent run_state(Trainer& trainer, const MemoryManager& manager, const Settings& settings,
                            const Dataset& data, int64_t step, int64_t tokens);

// Restores model, optimizer and the rest from a checkpoint made from run_state(). Throws UserError when the
// checkpoint is of another model.
void restore_run(const LoadedCheckpoint& checkpoint, const Settings& settings, Trainer& trainer,
                 MemoryManager& manager);

}  // namespace moelab
