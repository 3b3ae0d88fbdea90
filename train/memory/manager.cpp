#include "train/memory/manager.h"

#include <algorithm>
#include <utility>

namespace moelab {

using Batch = MemoryAction::Batch;

std::string action_text(const MemoryAction& action) {
  std::string text;
  if (action.batch != Batch::kept) {
    text = action.batch == Batch::reduced    ? "reducing batch size"
           : action.batch == Batch::restored ? "batch size restored"
                                             : "raising batch size";
    text += " (" + split_text(action.from) + " to " + split_text(action.to) + ")";
  }
  if (action.release_cached) text += std::string(text.empty() ? "" : ", ") + "releasing cached memory";
  return text;
}

MemoryManager::MemoryManager(const Settings& settings, PredictPeak predict)
    : settings_(settings),
      predict_(std::move(predict)),
      fixed_(!settings.memory.recover || settings.optim.in_backward),
      max_(settings.train.micro_batch),
      min_(1),
      target_(resolve_thresholds(settings.memory).target) {
  const auto& dynamic = settings.memory.dynamic_batch;
  if (dynamic.enabled) {
    max_ = dynamic.max;
    min_ = dynamic.min;
    target_ = dynamic.target;
  }
  state_.split = state_.configured = {settings.train.micro_batch, settings.train.accumulation};
  state_.wait = dynamic.every;
}

MemoryAction MemoryManager::after_step(const Reading& reading) {
  state_.highest = std::max(state_.highest, reading.peak);
  MemoryAction action{.from = state_.split, .to = state_.split};
  if (reading.status >= MemoryStatus::critical) {
    if (const auto next = smaller(min_)) action = change_to(*next, reading.step);
  } else if (const auto next = larger(reading)) {
    action = change_to(*next, reading.step);
  }
  action.release_cached = settings_.memory.recover && reading.status == MemoryStatus::emergency;
  return action;
}

bool MemoryManager::cache_is_due(int64_t step) const {
  const int64_t every = settings_.memory.empty_cache_every;
  return every > 0 && step % every == 0;
}

std::optional<MemoryAction> MemoryManager::after_refusal(int64_t step, int64_t limit) {
  auto next = smaller(1);
  for (auto less = next; less && peak_of(*next) > limit; less = halved(*less)) {
    if (peak_of(*less) < peak_of(*next)) next = less;
  }
  if (!next) return std::nullopt;
  MemoryAction action = change_to(*next, step);
  action.release_cached = true;
  return action;
}

void MemoryManager::restore(const State& state) {
  const auto [micro_batch, accumulation] = state.split;
  const int64_t rows = state_.configured.rows();
  const bool of_these_rows =
      micro_batch >= 1 && rows % micro_batch == 0 && accumulation == rows / micro_batch;
  if (!fixed_ && of_these_rows && state.configured == state_.configured) state_ = state;
}

// The next smaller split that needs less memory. Some need more: with accumulation, 16-bit gradients are
// summed in fp32.
std::optional<Split> MemoryManager::smaller(int64_t at_least) {
  if (fixed_) return std::nullopt;
  for (auto next = halved(state_.split); next && next->micro_batch >= at_least; next = halved(*next)) {
    if (peak_of(*next) < peak_of(state_.split)) return next;
  }
  return std::nullopt;
}

std::optional<Split> MemoryManager::larger(const Reading& reading) {
  if (fixed_ || reading.step - state_.changed_at < state_.wait) return std::nullopt;
  const auto& dynamic = settings_.memory.dynamic_batch;
  std::optional<Split> best;
  for (auto next = doubled(state_.split, max_); next; next = doubled(*next, max_)) {
    if (!within_target(*next, reading)) break;
    best = next;
    if (dynamic.enabled && dynamic.smooth) break;
  }
  return best;
}

bool MemoryManager::within_target(const Split& split, const Reading& reading) {
  const int64_t peak = state_.highest + peak_of(split) - peak_of(state_.split);
  return static_cast<double>(peak) <= target_ * static_cast<double>(reading.limit);
}

MemoryAction MemoryManager::change_to(const Split& to, int64_t step) {
  const bool grows = to.micro_batch > state_.split.micro_batch;
  if (!grows && state_.grew_last) state_.wait *= 2;
  const Batch batch = !grows ? Batch::reduced : to == state_.configured ? Batch::restored : Batch::raised;
  const Split from = std::exchange(state_.split, to);
  state_.changed_at = step;
  state_.highest = 0;
  state_.grew_last = grows;
  return {batch, from, to};
}

int64_t MemoryManager::peak_of(const Split& split) {
  const auto known = peaks_.find(split.micro_batch);
  if (known != peaks_.end()) return known->second;
  Settings changed = settings_;
  changed.eval.batches = 0;  // evaluation batches are sized on their own
  changed.train.micro_batch = split.micro_batch;
  changed.train.accumulation = split.accumulation;
  return peaks_[split.micro_batch] = predict_(changed);
}

}  // namespace moelab
