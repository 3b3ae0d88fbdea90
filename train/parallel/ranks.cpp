#include "train/parallel/ranks.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <utility>

#include "moe/settings/error.h"
#include "train/parallel/c10d_communicator.h"
#include "train/parallel/checked_communicator.h"
#include "train/parallel/gloo_group.h"
#include "train/parallel/nccl_group.h"

namespace moelab {
namespace {

std::chrono::milliseconds timeout_of(const ParallelSettings& settings) {
  return std::chrono::milliseconds(static_cast<int64_t>(settings.timeout * 1000));
}

// NCCL says the reason in its last lines.
std::string one_line(const std::exception& error) {
  const auto* const known = dynamic_cast<const c10::Error*>(&error);
  std::string text = known ? known->what_without_backtrace() : error.what();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (size_t end; (end = text.find('\n')) != std::string::npos;) text.replace(end, 1, "; ");
  return text;
}

}  // namespace

struct Ranks::Groups {
  RankStore store;
  std::chrono::milliseconds timeout;
  std::shared_ptr<ExchangeClock> clock;
  C10dCommunicator gradients, weights, updates, control;
  std::vector<CheckedCommunicator> checked = {};  // parallel.check: all() of them, in that order
  // Of all uses but control, which stays on the hosts: on a GPU the calls of all uses come in one order, and
  // messages of two NCCL groups could wait for each other.
  RankGroup gpus = {};
  std::optional<C10dCommunicator> checkpoint = {};  // of ranks that divide the state
  std::array<C10dCommunicator*, 4> all() { return {&gradients, &weights, &updates, &control}; }
};

Ranks::Ranks(const World& world, const ParallelSettings& settings)
    : world_(world),
      layout_(layout_of(world.size, settings.data, settings.tensor, settings.pipeline, settings.expert)) {
  if (world.alone()) return;
  const auto timeout = timeout_of(settings);
  RankStore store = open_store(world, timeout);
  const std::vector<int64_t> ranks = ranks_along(layout_, Axis::data, world.rank);
  const auto clock = std::make_shared<ExchangeClock>();
  const auto group = [&](const std::string& name) {
    return C10dCommunicator(gloo_group(store, name, world.rank, ranks, timeout), name, clock);
  };
  try {
    groups_.reset(new Groups{store, timeout, clock, group("data/gradients"), group("data/weights"),
                             group("data/updates"), group("data/control")});
    const std::string name = "data/checkpoint";
    if (settings.zero > 0)
      groups_->checkpoint.emplace(gloo_group(store, name, world.rank, ranks, timeout), name);
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    throw UserError("the " + std::to_string(world.size) + " ranks of this run did not all meet at " +
                    world.address + ":" + std::to_string(world.port) + " within parallel.timeout (" +
                    std::to_string(timeout.count() / 1000) + " s): " + reason.substr(0, reason.find('\n')));
  }
  if (!settings.check) return;
  for (C10dCommunicator* one : groups_->all()) groups_->checked.emplace_back(*one, one->name());
}

// While an error passes, other ranks may wait elsewhere, and shutting down would wait for them.
Ranks::~Ranks() {
  if (std::uncaught_exceptions() > 0) leave();
  if (!groups_ || !groups_->gpus) return;
  try {
    groups_->gpus->shutdown();
  } catch (const std::exception&) {  // the run is over
  }
}

void Ranks::connect(c10::Device gpu) {
  if (!groups_) return;
  try {
    groups_->gpus = nccl_group(groups_->store, "data/gpus", world_.rank,
                               ranks_along(layout_, Axis::data, world_.rank), gpu, groups_->timeout);
  } catch (const std::exception& error) {
    throw UserError("NCCL cannot connect the GPUs of the " + std::to_string(world_.size) +
                    " ranks: " + one_line(error));
  }
  for (C10dCommunicator* one : {&groups_->gradients, &groups_->weights, &groups_->updates})
    one->use_for_cuda(groups_->gpus);
}

DataRanks Ranks::data() {
  if (!groups_) return {};
  const auto use = [&](size_t i) -> Communicator* {
    if (groups_->checked.empty()) return groups_->all()[i];
    return &groups_->checked[i];
  };
  return {.gradients = use(0),
          .weights = use(1),
          .updates = use(2),
          .control = use(3),
          .checkpoint = groups_->checkpoint ? &*groups_->checkpoint : &one_rank()};
}

void Ranks::require_same(const std::string& what, std::span<const int64_t> words) {
  if (!groups_) return;
  const std::vector<int64_t> all = groups_->control.agree(words);
  const auto count = static_cast<int64_t>(words.size());
  for (int64_t r = 1; r < world_.size; ++r) {
    if (std::equal(all.begin(), all.begin() + count, all.begin() + r * count)) continue;
    throw SharedMistake("rank " + std::to_string(r) + " has other " + what +
                        " than rank 0; all ranks need the same");
  }
}

// A rank that asks leaves word in the store before it leaves the groups, which is how the others learn of its
// failure. A rank that died has left no word.
bool Ranks::meet_again(bool asks) {
  if (!groups_ || groups_->gpus) return false;
  const std::string meeting = "meeting-" + std::to_string(meetings_ + 1);
  try {
    if (asks) {
      groups_->store->set(meeting, std::vector<uint8_t>{1});
    } else if (!groups_->store->check({meeting})) {
      return false;
    }
  } catch (const std::exception&) {  // the rank that serves the store is gone
    return false;
  }
  ++meetings_;
  const std::vector<int64_t> ranks = ranks_along(layout_, Axis::data, world_.rank);
  for (C10dCommunicator* one : groups_->all()) one->leave();
  try {
    for (C10dCommunicator* one : groups_->all()) {
      const std::string name = meeting + "/" + one->name();
      one->join(gloo_group(groups_->store, name, world_.rank, ranks, groups_->timeout));
    }
  } catch (const std::exception&) {  // another rank is gone
    return false;
  }
  return true;
}

void Ranks::leave() {
  if (!groups_) return;
  for (C10dCommunicator* one : groups_->all()) one->leave();
  if (const RankGroup gpus = std::exchange(groups_->gpus, {})) {
    try {
      gpus->abort();
    } catch (const std::exception&) {  // there is an error already
    }
  }
}

std::vector<std::pair<std::string, int64_t>> Ranks::sent_bytes() const {
  if (!groups_) return {};
  std::vector<std::pair<std::string, int64_t>> sent;
  for (const C10dCommunicator* one : groups_->all()) sent.emplace_back(one->name(), one->sent_bytes());
  return sent;
}

ExchangeClock::Seconds Ranks::exchange_seconds() const {
  return groups_ ? groups_->clock->seconds() : ExchangeClock::Seconds{};
}

}  // namespace moelab
