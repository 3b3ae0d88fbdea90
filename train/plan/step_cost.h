#pragma once
#include <string_view>
#include <vector>

#include "train/config/facts/cost.h"
#include "train/config/settings.h"

namespace moelab {

// Every term of the cost model, in the order of train/plan/devices.json: what passes through the model, then
// each update rule's own, then what is stored and moved.
const std::vector<std::string_view>& cost_terms();
// Throws std::logic_error for a term that is none of them.
size_t index_of_term(std::string_view term);

// What one optimizer step spends its time on: how many units of each term.
class StepCost {
 public:
  StepCost() : amounts_(cost_terms().size()) {}
  void add(const Cost& cost) { amounts_[index_of_term(cost.term)] += cost.amount; }
  double of(std::string_view term) const { return amounts_[index_of_term(term)]; }
  const std::vector<double>& amounts() const { return amounts_; }  // in the order of cost_terms()

 private:
  std::vector<double> amounts_;
};

// The cost of one optimizer step of a resolved run, in closed form. Products count what is computed: rows of
// capacity buffers, filled or not, and what recomputation repeats, where model_flops_per_token counts the
// model alone.
StepCost step_cost(const Settings& settings);

}  // namespace moelab
