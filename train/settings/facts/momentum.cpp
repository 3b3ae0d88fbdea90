#include "train/settings/facts/update_rule.h"

// Lion and SGD with momentum (kernels/update/momentum_step.h): one fp32 momentum.
namespace moelab {
namespace {

class MomentumFacts : public UpdateRuleFacts {
 public:
  std::vector<StateSlot> layout(const WeightShape& weight) const override { return {{"m", weight.shape}}; }
};

class LionFacts : public MomentumFacts {
 public:
  std::string_view cost_term() const override { return "update_lion"; }
  std::optional<Technique> row() const override {
    return Technique{"lion",
                     "Lion",
                     {{"optim.name", "lion"}},
                     "Steps follow the momentum's sign alone; another learning rate suits it.",
                     instead_of_moments("momentum"),
                     {"vibee.lion_bytes"}};
  }
};

class SgdFacts : public MomentumFacts {
 public:
  std::string_view cost_term() const override { return "update_sgd"; }
  std::optional<Technique> row() const override {
    return Technique{"sgd",
                     "SGD with momentum",
                     {{"optim.name", "sgd"}},
                     "No second moment, so that every weight learns at the same rate.",
                     instead_of_moments("momentum"),
                     {"ava.optimizer_states"}};
  }
};

}  // namespace

const UpdateRuleFacts& lion_facts() {
  static const LionFacts facts;
  return facts;
}

const UpdateRuleFacts& sgd_facts() {
  static const SgdFacts facts;
  return facts;
}

}  // namespace moelab
