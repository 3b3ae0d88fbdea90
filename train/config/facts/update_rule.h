#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/memory/ledger.h"
#include "train/config/facts/cost.h"
#include "train/config/facts/element_type.h"
#include "train/config/facts/technique.h"
#include "train/config/settings.h"

// What each update rule says of itself. The rule's arithmetic is in kernels/; train/optim joins the two.
namespace moelab {

// A weight, as far as an update rule's state depends on it.
struct WeightShape {
  std::vector<int64_t> shape;
  bool is_bf16 = false;   // the value that the model computes with
  bool hidden = false;    // Parameter::hidden
  int64_t heads = 0;      // the first rows are so many query and key heads, …
  int64_t head_rows = 0;  // … of so many rows each
};

// One tensor that a rule keeps for a weight; it starts as zeros.
struct StateSlot {
  std::string suffix;  // "m": the tensor is NAME.m in a checkpoint
  std::vector<int64_t> shape;
  ElementType type = ElementType::fp32;
  Kind kind = Kind::optimizer;
};
int64_t elements_of(const StateSlot& slot);
int64_t bytes_of(const StateSlot& slot);

// How a weight may be cut into parts that are stepped one by one: its elements seen as `shape`, cut along
// the first axis at multiples of `align`. The state of the parts, one behind the other, is that of the whole.
struct Cut {
  std::vector<int64_t> shape;
  int64_t align = 1;
};
// One whole matrix a part.
Cut cut_by_matrix(const WeightShape& weight);

// How many weights a model has where rules may treat them differently.
struct WeightCounts {
  double in_blocks = 0, outside = 0;  // outside: embedding, head and final norm
  double total() const { return in_blocks + outside; }
};

class UpdateRuleFacts {
 public:
  virtual ~UpdateRuleFacts() = default;

  // The state of one weight.
  virtual std::vector<StateSlot> layout(const WeightShape& weight) const = 0;
  // By default anywhere.
  virtual Cut cut(const WeightShape& weight) const;
  // The state's bytes, P parameters, as text: "8 P (m and v in fp32)".
  virtual std::string formula() const = 0;
  // False: a bf16 weight has no fp32 master; what it lacks is in the state.
  virtual bool keeps_masters() const { return true; }
  // Whether it computes AdamW's update, in whatever form it keeps the state.
  virtual bool is_adamw() const { return false; }

  // The rule's own term of the cost model, one unit a weight stepped; empty: it has none.
  virtual std::string_view cost_term() const = 0;
  // What one step of all weights costs; by default in the rule's own term.
  virtual std::vector<Cost> costs(const ModelSettings& model, const WeightCounts& weights) const;

  // Throws UserError for a setting that the rule cannot stand beside.
  virtual void check(const Settings&) const {}
  // The rule's row in the table of techniques; none for the baseline's rule.
  virtual std::optional<Technique> row() const = 0;

  // The state's bytes a parameter of a large bf16 matrix, from layout().
  double bytes_per_parameter(bool hidden) const;
};

// The rule of optim.name with optim.state. A state that the name does not have is taken for fp32.
const UpdateRuleFacts& update_rule_facts(const OptimSettings& settings);

// Every rule, in the order of optim.name.
std::vector<const UpdateRuleFacts*> all_update_rules();

// Throws UserError for a state that the rule does not have, and for what the rule cannot stand beside.
void check_update_rule(const Settings& settings);

}  // namespace moelab
