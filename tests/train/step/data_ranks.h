#pragma once
#include <functional>

#include "tests/moe/thread_ranks.h"
#include "train/parallel/data_ranks.h"

namespace moelab::test {

// Runs rank(ranks) in a thread for each of `size` data-parallel ranks; then throws the lowest rank's error,
// if there is one.
inline void run_data_ranks(int64_t size, const std::function<void(DataRanks)>& rank) {
  ThreadRanks threads(size);
  Mailboxes gradients(threads.failed()), weights(threads.failed()), updates(threads.failed()),
      checkpoint(threads.failed());
  threads.run([&](Communicator& control) {
    ThreadRank to_gradients(gradients, control.rank(), size), to_weights(weights, control.rank(), size),
        to_updates(updates, control.rank(), size), to_checkpoint(checkpoint, control.rank(), size);
    rank({.gradients = &to_gradients,
          .weights = &to_weights,
          .updates = &to_updates,
          .control = &control,
          .checkpoint = &to_checkpoint});
  });
}

}  // namespace moelab::test
