#include "train/parallel/ranks.h"

#include <algorithm>
#include <array>
#include <exception>
#include <future>
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

// Where each of these ranks is among `all`.
std::vector<int> places_in(const std::vector<int64_t>& all, const std::vector<int64_t>& ranks) {
  std::vector<int> places;
  for (const int64_t rank : ranks)
    places.push_back(static_cast<int>(std::find(all.begin(), all.end(), rank) - all.begin()));
  return places;
}

// What ranks along an axis send one another.
struct Use {
  Axis axis;
  const char* name;
};
enum UseIndex : size_t {
  gradients,
  weights,
  updates,
  control,
  reports,
  expert_rows,
  expert_gradients,
  expert_weights,
  expert_updates,
  tensor_sums,
  stage_activations,
  stage_gradients,
  stage_control
};
constexpr std::array kUses = {
    Use{Axis::data, "gradients"},     Use{Axis::data, "weights"},         Use{Axis::data, "updates"},
    Use{Axis::all, "control"},        Use{Axis::data, "control"},         Use{Axis::expert, "rows"},
    Use{Axis::replicas, "gradients"}, Use{Axis::replicas, "weights"},     Use{Axis::replicas, "updates"},
    Use{Axis::tensor, "sums"},        Use{Axis::pipeline, "activations"}, Use{Axis::pipeline, "gradients"},
    Use{Axis::stage, "control"}};

std::string name_of(Axis axis) { return std::string(enum_names(axis)[static_cast<size_t>(axis)]); }

}  // namespace

struct Ranks::Groups {
  RankStore store;
  std::chrono::milliseconds timeout;
  int64_t rank;
  RankLayout layout;
  std::shared_ptr<ExchangeClock> clock = std::make_shared<ExchangeClock>();
  // Of kUses; none where the axis has one rank.
  std::array<std::optional<C10dCommunicator>, kUses.size()> uses = {};
  std::array<std::optional<CheckedCommunicator>, kUses.size()> checked = {};  // parallel.check: around `uses`
  // Of all ranks and all uses but control, which stays on the hosts: on a GPU the calls of all uses come in
  // one order, and messages of two NCCL groups could wait for each other.
  RankGroup gpus = {};
  std::optional<C10dCommunicator> checkpoint = {};  // of ranks that write checkpoints together

  std::vector<int64_t> along(Axis axis) const { return ranks_along(layout, axis, rank); }
  // By which use data-parallel ranks decide together, and by which those of one stage.
  UseIndex among_data() const { return layout.data == layout.ranks() ? control : reports; }
  UseIndex among_stage() const {
    if (layout.pipeline == 1) return control;
    return layout.tensor == 1 ? among_data() : stage_control;
  }
  // `prefix`: what no other group of this name has.
  RankGroup meet(const std::string& prefix, const std::string& name,
                 const std::vector<int64_t>& ranks) const {
    const std::string unique = prefix + name + "/" + std::to_string(ranks.front());
    return gloo_group(store, unique, rank, ranks, timeout);
  }
  void connect(bool check) {
    for (size_t i = 0; i < kUses.size(); ++i) {
      const auto [axis, use] = kUses[i];
      if (layout.expert == 1 && axis == Axis::replicas) continue;
      if ((i == reports && among_data() != i) || (i == stage_control && among_stage() != i)) continue;
      if (along(axis).size() == 1) continue;
      const std::string name = name_of(axis) + "/" + use;
      uses[i].emplace(meet("", name, along(axis)), name, clock);
      if (check) checked[i].emplace(*uses[i], name);
    }
  }
  void connect_writers(bool divided) {
    const std::vector<int64_t> writers = writers_of(layout, divided);
    const bool writes = std::find(writers.begin(), writers.end(), rank) != writers.end();
    if (writes && writers.size() > 1) checkpoint.emplace(meet("", "checkpoint", writers), "checkpoint");
  }
  template <class Work>
  void each(const Work& work) {
    for (auto& one : uses) {
      if (one) work(*one);
    }
  }
};

Ranks::Ranks(const World& world, const ParallelSettings& settings)
    : world_(world),
      layout_(layout_of(world.size, settings.data, settings.tensor, settings.pipeline, settings.expert)) {
  if (world.alone()) return;
  const auto timeout = timeout_of(settings);
  groups_.reset(new Groups{open_store(world, timeout), timeout, world.rank, layout_});
  try {
    groups_->connect(settings.check);
    groups_->connect_writers(settings.zero > 0);
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    throw UserError("the " + std::to_string(world.size) + " ranks of this run did not all meet at " +
                    world.address + ":" + std::to_string(world.port) + " within parallel.timeout (" +
                    std::to_string(timeout.count() / 1000) + " s): " + reason.substr(0, reason.find('\n')));
  }
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
  if (layout_.pipeline > 1) {
    throw SharedMistake("parallel.pipeline=" + std::to_string(layout_.pipeline) +
                        " with GPUs: stages hand tensors on between CPUs only; set run.device=cpu, or "
                        "parallel.pipeline=1");
  }
  try {
    groups_->gpus =
        nccl_group(groups_->store, "all/gpus", world_.rank, groups_->along(Axis::all), gpu, groups_->timeout);
  } catch (const std::exception& error) {
    throw UserError("NCCL cannot connect the GPUs of the " + std::to_string(world_.size) +
                    " ranks: " + one_line(error));
  }
  for (size_t i = 0; i < kUses.size(); ++i) {
    if (i == control || i == reports || i == stage_control || !groups_->uses[i]) continue;
    groups_->uses[i]->use_for_cuda(groups_->gpus,
                                   places_in(groups_->along(Axis::all), groups_->along(kUses[i].axis)));
  }
}

DataRanks Ranks::data() {
  if (!groups_) return {};
  const auto use = [&](UseIndex i) -> Communicator* {
    if (groups_->checked[i]) return &*groups_->checked[i];
    return groups_->uses[i] ? static_cast<Communicator*>(&*groups_->uses[i]) : &one_rank();
  };
  return {.gradients = use(gradients),
          .weights = use(weights),
          .updates = use(updates),
          .control = use(control),
          .reports = use(groups_->among_data()),
          .of_stage = use(groups_->among_stage()),
          .checkpoint = groups_->checkpoint ? static_cast<Communicator*>(&*groups_->checkpoint) : &one_rank(),
          .experts = use(expert_rows),
          .expert_gradients = use(expert_gradients),
          .expert_weights = use(expert_weights),
          .expert_updates = use(expert_updates),
          .stages = use(stage_activations),
          .stage_gradients = use(stage_gradients),
          .tensor = use(tensor_sums)};
}

void Ranks::require_same(const std::string& what, std::span<const int64_t> words) {
  if (!groups_) return;
  const std::vector<int64_t> all = groups_->uses[control]->agree(words);
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
  groups_->each([](C10dCommunicator& one) { one.leave(); });
  try {
    for (size_t i = 0; i < kUses.size(); ++i) {
      if (auto& one = groups_->uses[i])
        one->join(groups_->meet(meeting + "/", one->name(), groups_->along(kUses[i].axis)));
    }
  } catch (const std::exception&) {  // another rank is gone
    return false;
  }
  return true;
}

void Ranks::leave() {
  if (!groups_) return;
  groups_->each([](C10dCommunicator& one) { one.leave(); });
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
  groups_->each([&](const C10dCommunicator& one) { sent.emplace_back(one.name(), one.sent_bytes()); });
  return sent;
}

ExchangeClock::Seconds Ranks::exchange_seconds() const {
  return groups_ ? groups_->clock->seconds() : ExchangeClock::Seconds{};
}

void on_first_rank(Communicator& ranks, const std::function<void()>& work) {
  if (ranks.size() == 1) return work();
  std::future<void> done;
  if (ranks.rank() == 0) done = std::async(std::launch::async, work);
  while (!on_any_rank(
      ranks, done.valid() && done.wait_for(std::chrono::milliseconds(200)) == std::future_status::ready)) {
  }
  std::string mistake;
  try {
    if (done.valid()) done.get();
  } catch (const UserError& error) {
    mistake = error.what();
  }
  mistake = of_first_rank(ranks, mistake);
  if (!mistake.empty()) throw SharedMistake(mistake);
}

}  // namespace moelab
