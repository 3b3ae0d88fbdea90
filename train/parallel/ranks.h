#pragma once
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "moe/settings/error.h"
#include "train/parallel/data_ranks.h"
#include "train/parallel/exchange_clock.h"
#include "train/parallel/layout.h"
#include "train/parallel/world.h"
#include "train/settings/settings.h"

namespace moelab {

// A mistake that one rank alone has met, such as a full drive.
struct RankError : UserError {
  RankError(int64_t rank, const UserError& error)
      : UserError("rank " + std::to_string(rank) + ": " + error.what()) {}
};

// A mistake that all ranks have found together: rank 0 speaks for them.
struct SharedMistake : UserError {
  using UserError::UserError;
};

// The ranks of a run, once they have met. One rank alone meets nobody and opens nothing.
class Ranks {
 public:
  // Meets the other ranks of `world`; `settings` say how they are laid out. Throws UserError when the layout
  // does not fit the world, and when ranks do not come within parallel.timeout.
  Ranks(const World& world, const ParallelSettings& settings);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const World& world() const { return world_; }
  const RankLayout& layout() const { return layout_; }
  bool alone() const { return world_.alone(); }
  // Connects the GPUs of the ranks, so that CUDA tensors may be sent; `gpu` is this one's. All ranks call it,
  // unless they are on the CPU. Throws UserError when NCCL cannot connect them.
  void connect(c10::Device gpu);
  DataRanks data();

  // Throws SharedMistake unless all ranks give the same words for `what` ("settings").
  void require_same(const std::string& what, std::span<const int64_t> words);

  // After a step that failed here, and that was abandoned: has all ranks leave their groups and meet in new
  // ones, to go on together. `asks`: this rank can go on, and wants it; ranks that do not ask come when one
  // does. False: none has asked, not all have come within parallel.timeout, or these ranks cannot (on GPUs it
  // is not built).
  bool meet_again(bool asks);
  // Ends all communication, so that no rank waits for this one; only a save under way goes on. Later calls
  // throw c10::Error. Call it when this rank cannot go on.
  void leave();

  // Sent by this rank so far, by axis and use ("data/gradients").
  std::vector<std::pair<std::string, int64_t>> sent_bytes() const;
  // Of all that this rank has exchanged so far.
  ExchangeClock::Seconds exchange_seconds() const;

 private:
  struct Groups;
  World world_;
  RankLayout layout_;
  int64_t meetings_ = 0;            // after the first
  std::unique_ptr<Groups> groups_;  // null: alone
};

// Does the work on the first rank, which may take longer than parallel.timeout; the others wait for it.
// Throws SharedMistake on all of them when the first one meets a mistake.
void on_first_rank(Communicator& ranks, const std::function<void()>& work);

}  // namespace moelab
