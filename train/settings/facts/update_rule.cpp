#include "train/settings/facts/update_rule.h"

#include <sstream>

#include "train/settings/facts/require.h"

namespace moelab {

// Each is defined in the file of its name.
const UpdateRuleFacts& adamw_facts();
const UpdateRuleFacts& adamw_bf16_facts();
const UpdateRuleFacts& adam8bit_facts();
const UpdateRuleFacts& adamw_compact_facts();
const UpdateRuleFacts& adam_mini_facts();
const UpdateRuleFacts& lion_facts();
const UpdateRuleFacts& adafactor_facts();
const UpdateRuleFacts& sgd_facts();
const UpdateRuleFacts& muon_facts();

namespace {

struct Entry {
  OptimizerName name;
  OptimizerState state;
  const UpdateRuleFacts& (*facts)();
};

// A new rule is one entry here and one in train/optim/update_rule.cpp.
constexpr Entry kRules[] = {
    {OptimizerName::adamw, OptimizerState::fp32, adamw_facts},
    {OptimizerName::adamw, OptimizerState::bf16, adamw_bf16_facts},
    {OptimizerName::adam8bit, OptimizerState::fp32, adam8bit_facts},
    {OptimizerName::adamw_compact, OptimizerState::fp32, adamw_compact_facts},
    {OptimizerName::adam_mini, OptimizerState::fp32, adam_mini_facts},
    {OptimizerName::lion, OptimizerState::fp32, lion_facts},
    {OptimizerName::adafactor, OptimizerState::fp32, adafactor_facts},
    {OptimizerName::sgd, OptimizerState::fp32, sgd_facts},
    {OptimizerName::muon, OptimizerState::fp32, muon_facts},
};

const Entry* find(OptimizerName name, OptimizerState state) {
  for (const Entry& entry : kRules)
    if (entry.name == name && entry.state == state) return &entry;
  return nullptr;
}

// So large that one number per row is negligible.
constexpr int64_t kSide = int64_t{1} << 20;
constexpr double kLarge = double{kSide} * double{kSide};

std::vector<StateSlot> layout_of_large(const UpdateRuleFacts& rule, bool hidden) {
  return rule.layout({.shape = {kSide, kSide}, .is_bf16 = true, .hidden = hidden});
}

std::string type_text(ElementType type) {
  switch (type) {
    case ElementType::fp32:
      return "fp32";
    case ElementType::bf16:
      return "bf16";
    case ElementType::fp16:
      return "fp16";
    case ElementType::int16:
      return "16 bits";
    case ElementType::int8:
    case ElementType::uint8:
      break;
  }
  return "8 bits";
}

// Six digits: without what a number per row adds.
std::string digits(double number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

// The rules that have the state, e.g. "optim.name=adamw or lion".
std::string names_with(OptimizerState state) {
  std::string names;
  for (const Entry& entry : kRules)
    if (entry.state == state) names += (names.empty() ? "optim.name=" : " or ") + value_text(entry.name);
  return names;
}

}  // namespace

int64_t elements_of(const StateSlot& slot) {
  int64_t elements = 1;
  for (const int64_t size : slot.shape) elements *= size;
  return elements;
}

int64_t bytes_of(const StateSlot& slot) { return elements_of(slot) * bytes_of(slot.type); }

int64_t rows_of(const WeightShape& weight) {
  return weight.shape.size() > 1 ? elements_of({"", weight.shape}) / weight.shape.back() : 1;
}

Cut cut_by_matrix(const WeightShape& weight) {
  const std::vector<int64_t>& s = weight.shape;
  const int64_t columns = s.empty() ? 1 : s.back(), rows = s.size() > 1 ? s[s.size() - 2] : 1;
  return {{elements_of({"", s}) / (rows * columns), rows, columns}};
}

Cut UpdateRuleFacts::cut(const WeightShape& weight) const { return {{elements_of({"", weight.shape})}}; }

std::vector<Cost> UpdateRuleFacts::costs(const ModelSettings&, const WeightCounts& weights) const {
  return {{cost_term(), weights.total()}};
}

double UpdateRuleFacts::bytes_per_parameter(bool hidden) const {
  double bytes = 0;
  for (const StateSlot& slot : layout_of_large(*this, hidden)) bytes += static_cast<double>(bytes_of(slot));
  return bytes / kLarge;
}

std::string UpdateRuleFacts::bytes_text(bool hidden) const {
  std::string tensors;
  bool scales = false;
  for (const StateSlot& slot : layout_of_large(*this, hidden)) {
    if (static_cast<double>(elements_of(slot)) == kLarge)
      tensors += (tensors.empty() ? "" : ", ") + slot.suffix + " in " + type_text(slot.type);
    else
      scales |= static_cast<double>(bytes_of(slot)) > 1e-3 * kLarge;
  }
  return digits(bytes_per_parameter(hidden)) + " P (" + tensors + (scales ? ", and scales)" : ")");
}

std::string UpdateRuleFacts::instead_of_moments(std::string_view state) const {
  return digits(bytes_per_parameter(true)) + " P of " + std::string(state) + " for " +
         digits(adamw_facts().bytes_per_parameter(true)) + " P";
}

const UpdateRuleFacts& update_rule_facts(const OptimSettings& settings) {
  const Entry* const entry = find(settings.name, settings.state);
  return (entry ? entry : find(settings.name, OptimizerState::fp32))->facts();
}

std::vector<const UpdateRuleFacts*> all_update_rules() {
  std::vector<const UpdateRuleFacts*> rules;
  for (const Entry& entry : kRules) rules.push_back(&entry.facts());
  return rules;
}

void check_update_rule(const Settings& settings) {
  const OptimSettings& o = settings.optim;
  require(find(o.name, o.state) != nullptr, named("optim.state", o.state) + " with " +
                                                named("optim.name", o.name) + "; only " +
                                                names_with(o.state) + " can keep its state in that type");
  update_rule_facts(o).check(settings);
}

}  // namespace moelab
