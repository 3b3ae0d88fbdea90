#include "train/settings/facts/update_rule.h"

// Adam-mini (kernels/update/adam_mini.h): one second moment a head or row.
namespace moelab {
namespace {

class AdamMiniFacts : public UpdateRuleFacts {
 public:
  std::vector<StateSlot> layout(const WeightShape& weight) const override {
    const int64_t blocks = weight.heads + rows_of(weight) - weight.heads * weight.head_rows;
    return {{"m", weight.shape}, {"v", {blocks}}};
  }
  Cut cut(const WeightShape& weight) const override {
    const int64_t rows = rows_of(weight);
    return {{rows, elements_of({"", weight.shape}) / rows}, weight.heads > 0 ? weight.head_rows : 1};
  }
  std::string formula() const override {
    return UpdateRuleFacts::formula() + ", and v in fp32 for each head, output neuron or expert row";
  }
  std::string_view cost_term() const override { return "update_adam_mini"; }
  std::optional<Technique> row() const override {
    return Technique{"adam_mini",
                     "Adam-mini",
                     {{"optim.name", "adam_mini"}},
                     "The weights of a head or output share one second moment.",
                     instead_of_moments("moments") + ", and one number a head or output",
                     {"vibee.adam_mini_bytes"}};
  }
};

}  // namespace

const UpdateRuleFacts& adam_mini_facts() {
  static const AdamMiniFacts facts;
  return facts;
}

}  // namespace moelab
