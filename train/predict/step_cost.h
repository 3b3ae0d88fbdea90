#pragma once
#include <string_view>
#include <vector>

#include "train/settings/facts/cost.h"
#include "train/settings/settings.h"

namespace moelab {

// Every term of the cost model, in the order of train/predict/devices.json: the model's work, each update
// rule's own term, then storing and moving.
const std::vector<std::string_view>& cost_terms();
// Throws std::logic_error for an unknown term.
size_t index_of_term(std::string_view term);

// The cost of one optimizer step: how many units of each term it has.
class StepCost {
 public:
  StepCost() : amounts_(cost_terms().size()) {}
  void add(const Cost& cost) { amounts_[index_of_term(cost.term)] += cost.amount; }
  void add(const StepCost& other) {
    for (size_t i = 0; i < amounts_.size(); ++i) amounts_[i] += other.amounts_[i];
  }
  double of(std::string_view term) const { return amounts_[index_of_term(term)]; }
  const std::vector<double>& amounts() const { return amounts_; }  // in the order of cost_terms()

 private:
  std::vector<double> amounts_;
};

// The parts of a step that pass one after another. A rank's state and its update are what it owns.
struct StepParts {
  StepCost blocks;           // their forward and backward passes, of all micro-batches
  double forward_share = 0;  // of `blocks`
  StepCost head;             // with the loss: its backward pass is part of forward
  StepCost update;
};
StepParts step_parts(const Settings& settings);

// The cost of one optimizer step of a resolved run, in closed form; `settings` may be a rank's share of one
// (train/predict/rank_share.h). Products count everything computed, including empty rows of capacity buffers
// and recomputation, unlike model_flops_per_token, which counts the model alone.
StepCost step_cost(const Settings& settings);

}  // namespace moelab
