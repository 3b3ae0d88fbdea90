#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/moe/thread_ranks.h"
#include "train/parallel/data_ranks.h"
#include "train/parallel/layout.h"

namespace moelab::test {

// Runs rank(ranks) in a thread for each rank of `layout`; then throws the first error, if there is one. Of
// ranks that do not divide the state (`divided`), those that write no checkpoint have none to write it with.
inline void run_ranks(const RankLayout& layout, const std::function<void(DataRanks)>& rank,
                      bool divided = true) {
  ThreadRanks threads(layout.ranks());
  const auto mailboxes = [&] { return Mailboxes(threads.failed()); };
  std::array<Mailboxes, 4> data = {mailboxes(), mailboxes(), mailboxes(), mailboxes()};
  std::array<Mailboxes, 3> replicas = {mailboxes(), mailboxes(), mailboxes()};
  Mailboxes rows = mailboxes(), sums = mailboxes(), writes = mailboxes(), handed_on = mailboxes(),
            handed_back = mailboxes(), decisions = mailboxes();
  threads.run([&](Communicator& control) {
    const auto along = [&](Axis axis, Mailboxes& boxes) {
      return ThreadRank(boxes, ranks_along(layout, axis, control.rank()), control.rank());
    };
    std::vector<int64_t> saving = writers_of(layout, divided);
    const bool saves = std::find(saving.begin(), saving.end(), control.rank()) != saving.end();
    ThreadRank writers(writes, saves ? saving : std::vector<int64_t>{control.rank()}, control.rank());
    ThreadRank gradients = along(Axis::data, data[0]), weights = along(Axis::data, data[1]),
               updates = along(Axis::data, data[2]), reports = along(Axis::data, data[3]),
               exchanged = along(Axis::expert, rows), expert_gradients = along(Axis::replicas, replicas[0]),
               expert_weights = along(Axis::replicas, replicas[1]),
               expert_updates = along(Axis::replicas, replicas[2]), tensor = along(Axis::tensor, sums),
               stages = along(Axis::pipeline, handed_on),
               stage_gradients = along(Axis::pipeline, handed_back), of_stage = along(Axis::stage, decisions);
    rank({.gradients = &gradients,
          .weights = &weights,
          .updates = &updates,
          .control = &control,
          .reports = &reports,
          .of_stage = &of_stage,
          .checkpoint = saves ? &writers : nullptr,
          .experts = &exchanged,
          .expert_gradients = &expert_gradients,
          .expert_weights = &expert_weights,
          .expert_updates = &expert_updates,
          .stages = &stages,
          .stage_gradients = &stage_gradients,
          .tensor = &tensor});
  });
}

// As above, for `size` data-parallel ranks, of which `experts` neighbours each share the experts.
inline void run_data_ranks(int64_t size, const std::function<void(DataRanks)>& rank, int64_t experts = 1,
                           bool divided = true) {
  run_ranks({.data = size, .expert = experts}, rank, divided);
}

// What a rank has sent, without what ranks decide together.
inline int64_t sent_bytes(const DataRanks& ranks) {
  int64_t bytes = 0;
  for (const Communicator* use :
       {ranks.gradients, ranks.weights, ranks.updates, ranks.experts, ranks.expert_gradients,
        ranks.expert_weights, ranks.expert_updates, ranks.tensor, ranks.stages, ranks.stage_gradients})
    bytes += use->sent_bytes();
  return bytes;
}

}  // namespace moelab::test
