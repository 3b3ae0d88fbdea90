// What a trainer holds, for checkpoints and for reports.
#include <ATen/ATen.h>

#include <algorithm>

#include "train/settings/facts/storage.h"
#include "train/step/trainer.h"

namespace moelab {

// A tied embedding is the first stage's to save.
bool Trainer::saved_elsewhere(size_t index) const {
  const Parameter& parameter = optimizer_.parameters()[index];
  return is_tied_copy(parameter.name) || !ranks_.first_to_hold(parameter, optimizer_.divided());
}

std::vector<TensorEntry> Trainer::optimizer_state() const {
  std::vector<TensorEntry> entries;
  for (const NamedState& state : optimizer_.state(false)) {
    entries.push_back({state.name, state.tensor, state.part, saved_elsewhere(state.index)});
  }
  return entries;
}

void Trainer::set_optimizer_state(const std::vector<TensorEntry>& entries) {
  std::vector<NamedState> named;
  for (const TensorEntry& entry : entries) named.push_back({entry.name, entry.tensor});
  optimizer_.set_state(named);
}

std::vector<TensorEntry> Trainer::weights() const {
  gathered_.all_arrive();
  std::vector<TensorEntry> entries;
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) {
    const auto weights = [&] { return optimizer_.weights(i); };
    entries.push_back({optimizer_.parameters()[i].name, gathered_.read(i, weights), optimizer_.part(i),
                       saved_elsewhere(i)});
  }
  for (const auto& buffer : model_.buffers())
    entries.push_back({buffer.name, buffer.tensor, {}, !ranks_.first_of_stage()});
  return entries;
}

void Trainer::set_weights(const std::vector<TensorEntry>& entries) {
  gathered_.all_arrive();
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) {
    change_weights(i, [&] { optimizer_.set_weights(i, entries.at(i).tensor); });
  }
}

// Where another thread steps in backward, the step waits for that thread, not for what that one waits for.
HomeSeconds Trainer::waited() const {
  const PlacementSettings& placement = settings_.placement;
  HomeSeconds sum;
  sum.add(placement.parameters, gathered_.waited_seconds());
  sum.add(storage_facts(settings_.activations.storage).home, saved_.waited_seconds());
  if (reference_) sum.add(settings_.reference.placement, reference_->waited_seconds());
  if (host_steps_) {
    sum.add(placement.optimizer, waits_for_host_steps_.seconds());
    return sum;
  }
  sum.add(Home::host, gradients_.waited_seconds() + optimizer_.waited_seconds());
  if (state_file_) sum.add(Home::nvme, state_file_->waited_seconds());
  return sum;
}

Trainer::StateBytes Trainer::state_bytes() const {
  StateBytes bytes;
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) {
    const Parameter& parameter = optimizer_.parameters()[i];
    const auto size = static_cast<int64_t>(parameter.value.nbytes());
    bytes.parameters += gathered_.held_bytes(i);
    const bool whole = settings_.parallel.reduce == Reduction::step && settings_.train.accumulation > 1;
    const int64_t elements = whole ? optimizer_.leaf(i).numel() : parameter.value.numel(),
                  gradient = micro_batches() > 1 ? elements * 4 : size;
    const bool one_at_a_time = settings_.optim.in_backward;
    bytes.gradients = one_at_a_time ? std::max(bytes.gradients, gradient) : bytes.gradients + gradient;
  }
  bytes.optimizer = optimizer_.rule_bytes();
  bytes.parameters += optimizer_.state_bytes() - bytes.optimizer;
  return bytes;
}

}  // namespace moelab
