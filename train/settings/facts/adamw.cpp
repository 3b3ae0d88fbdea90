#include "train/settings/facts/update_rule.h"

// AdamW (kernels/update/adamw.h), with moments in fp32 or bf16.
namespace moelab {
namespace {

class AdamWFacts : public UpdateRuleFacts {
 public:
  explicit AdamWFacts(ElementType moments) : moments_(moments) {}

  std::vector<StateSlot> layout(const WeightShape& weight) const override {
    return {{"m", weight.shape, moments_}, {"v", weight.shape, moments_}};
  }
  bool is_adamw() const override { return true; }
  std::string_view cost_term() const override { return narrow() ? "update_bf16_moments" : "update_adamw"; }
  std::optional<Technique> row() const override {
    if (!narrow()) return std::nullopt;
    return Technique{"bf16_moments",
                     "AdamW with bf16 moments",
                     {{"optim.state", "bf16"}},
                     "Moments are rounded stochastically.",
                     instead_of_moments("moments"),
                     {"vibee.adamw_bytes", "ava.optimizer_states"}};
  }

 private:
  bool narrow() const { return moments_ == ElementType::bf16; }
  ElementType moments_;
};

}  // namespace

const UpdateRuleFacts& adamw_facts() {
  static const AdamWFacts facts(ElementType::fp32);
  return facts;
}

const UpdateRuleFacts& adamw_bf16_facts() {
  static const AdamWFacts facts(ElementType::bf16);
  return facts;
}

}  // namespace moelab
