#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/memory/ledger.h"
#include "train/settings/facts/cost.h"
#include "train/settings/facts/element_type.h"
#include "train/settings/facts/technique.h"
#include "train/settings/settings.h"

// Facts about each update rule. The rule's arithmetic is in kernels/; train/optim connects the two.
namespace moelab {

// The properties of a weight that an update rule's state depends on.
struct WeightShape {
  std::vector<int64_t> shape;
  bool is_bf16 = false;   // the type that the model computes with
  bool hidden = false;    // Parameter::hidden
  int64_t heads = 0;      // number of query and key heads in the first rows
  int64_t head_rows = 0;  // rows of each of these heads
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
// The rows of a matrix, or of all matrices of a stack; a vector is one row.
int64_t rows_of(const WeightShape& weight);

// How a weight may be cut into parts that are stepped one by one: its elements are viewed as `shape` and cut
// along the first axis at multiples of `align`. Concatenating the parts' state gives the whole weight's
// state.
struct Cut {
  std::vector<int64_t> shape;
  int64_t align = 1;
};
// Each part is one whole matrix.
Cut cut_by_matrix(const WeightShape& weight);

// Number of weights in the blocks and outside of them; rules may treat the two differently.
struct WeightCounts {
  double in_blocks = 0, outside = 0;  // outside: embedding, head and final norm
  double total() const { return in_blocks + outside; }
};

class UpdateRuleFacts {
 public:
  virtual ~UpdateRuleFacts() = default;

  // The state of one weight.
  virtual std::vector<StateSlot> layout(const WeightShape& weight) const = 0;
  // Where the weight may be cut; by default anywhere.
  virtual Cut cut(const WeightShape& weight) const;
  // A formula for the state's bytes with P parameters; by default bytes_text() of the blocks' matrices.
  virtual std::string formula() const { return bytes_text(true); }
  // Whether a bf16 weight has an fp32 master. If not, the rule's state holds the bits that bf16 cuts off.
  virtual bool keeps_masters() const { return true; }
  // Whether the rule computes AdamW's update, in whatever form it keeps its state.
  virtual bool is_adamw() const { return false; }

  // The rule's own cost-model term, one unit per weight stepped; empty: it has none.
  virtual std::string_view cost_term() const = 0;
  // The cost of one step of all weights; by default in the rule's own term.
  virtual std::vector<Cost> costs(const ModelSettings& model, const WeightCounts& weights) const;

  // Throws UserError for a setting that conflicts with the rule.
  virtual void check(const Settings&) const {}
  // The rule's row in the technique table; none for the baseline's rule.
  virtual std::optional<Technique> row() const = 0;

  // The state's bytes per parameter of a large bf16 matrix, from layout(); and these as text with the names
  // of its tensors: "8 P (m in fp32, v in fp32)".
  double bytes_per_parameter(bool hidden) const;
  std::string bytes_text(bool hidden) const;

 protected:
  // Bytes for a row: "4 P of momentum for 8 P", the last being AdamW's.
  std::string instead_of_moments(std::string_view state) const;
};

// The rule for optim.name and optim.state. If that optimizer lacks the state: its rule with fp32 state.
const UpdateRuleFacts& update_rule_facts(const OptimSettings& settings);

// Every rule, in the order of optim.name.
std::vector<const UpdateRuleFacts*> all_update_rules();

// Throws UserError when the rule does not have optim.state, or conflicts with another setting.
void check_update_rule(const Settings& settings);

}  // namespace moelab
