#pragma once
#include <array>
#include <functional>

#include "tests/moe/thread_ranks.h"
#include "train/parallel/data_ranks.h"

namespace moelab::test {

// Runs rank(ranks) in a thread for each of `size` data-parallel ranks, of which `experts` neighbours each
// share the experts; then throws the first error, if there is one.
inline void run_data_ranks(int64_t size, const std::function<void(DataRanks)>& rank, int64_t experts = 1) {
  ThreadRanks threads(size);
  const auto mailboxes = [&] { return Mailboxes(threads.failed()); };
  std::array<Mailboxes, 4> data = {mailboxes(), mailboxes(), mailboxes(), mailboxes()},
                           replicas = {mailboxes(), mailboxes(), mailboxes(), mailboxes()};
  Mailboxes rows(threads.failed());
  threads.run([&](Communicator& control) {
    const int64_t d = control.rank(), group = d / experts, kind = d % experts;
    const auto of_data = [&](size_t use) { return ThreadRank(data[use], d, size); };
    const auto of_replicas = [&](size_t use) {
      return ThreadRank(replicas[use], group, size / experts, kind * size);
    };
    ThreadRank gradients = of_data(0), weights = of_data(1), updates = of_data(2), writers = of_data(3),
               expert_gradients = of_replicas(0), expert_weights = of_replicas(1),
               expert_updates = of_replicas(2), exchanged(rows, kind, experts, group * size);
    rank({.gradients = &gradients,
          .weights = &weights,
          .updates = &updates,
          .control = &control,
          .checkpoint = &writers,
          .experts = &exchanged,
          .expert_gradients = &expert_gradients,
          .expert_weights = &expert_weights,
          .expert_updates = &expert_updates});
  });
}

}  // namespace moelab::test
