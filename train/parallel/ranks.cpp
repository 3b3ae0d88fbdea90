#include "train/parallel/ranks.h"

#include <algorithm>
#include <array>

#include "moe/settings/error.h"
#include "train/parallel/c10d_communicator.h"
#include "train/parallel/gloo_group.h"

namespace moelab {
namespace {

std::chrono::milliseconds timeout_of(const ParallelSettings& settings) {
  return std::chrono::milliseconds(static_cast<int64_t>(settings.timeout * 1000));
}

}  // namespace

struct Ranks::Groups {
  RankStore store;
  C10dCommunicator gradients, weights, updates, control;
  std::array<C10dCommunicator*, 4> all() { return {&gradients, &weights, &updates, &control}; }
};

Ranks::Ranks(const World& world, const ParallelSettings& settings)
    : world_(world),
      layout_(layout_of(world.size, settings.data, settings.tensor, settings.pipeline, settings.expert)) {
  if (world.alone()) return;
  const auto timeout = timeout_of(settings);
  RankStore store = open_store(world, timeout);
  const std::vector<int64_t> ranks = ranks_along(layout_, Axis::data, world.rank);
  const auto group = [&](const std::string& name) {
    return C10dCommunicator(gloo_group(store, name, world.rank, ranks, timeout), name);
  };
  try {
    groups_.reset(new Groups{store, group("data/gradients"), group("data/weights"), group("data/updates"),
                             group("data/control")});
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    throw UserError("the " + std::to_string(world.size) + " ranks of this run did not all meet at " +
                    world.address + ":" + std::to_string(world.port) + " within parallel.timeout (" +
                    std::to_string(timeout.count() / 1000) + " s): " + reason.substr(0, reason.find('\n')));
  }
}

Ranks::~Ranks() = default;

DataRanks Ranks::data() {
  if (!groups_) return {};
  return {.gradients = &groups_->gradients,
          .weights = &groups_->weights,
          .updates = &groups_->updates,
          .control = &groups_->control};
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

void Ranks::leave() {
  if (!groups_) return;
  for (C10dCommunicator* one : groups_->all()) one->leave();
}

std::vector<std::pair<std::string, int64_t>> Ranks::sent_bytes() const {
  if (!groups_) return {};
  std::vector<std::pair<std::string, int64_t>> sent;
  for (const C10dCommunicator* one : groups_->all()) sent.emplace_back(one->name(), one->sent_bytes());
  return sent;
}

}  // namespace moelab
