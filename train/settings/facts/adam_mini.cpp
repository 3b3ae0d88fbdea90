#include "train/settings/facts/update_rule.h"

// Adam-mini (kernels/update/adam_mini.h): one second moment a head or row.
namespace moelab {
namespace {

// A stack of experts' matrices has the rows of all of them; a vector is one row.
int64_t rows_of(const WeightShape& weight) {
  return weight.shape.size() > 1 ? elements_of({"", weight.shape}) / weight.shape.back() : 1;
}

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
    return "4 P (m in fp32) + 4 for each head, output neuron or expert row";
  }
  std::string_view cost_term() const override { return "update_adam_mini"; }
  std::optional<Technique> row() const override {
    return Technique{"adam_mini",
                     "Adam-mini",
                     {{"optim.name", "adam_mini"}},
                     "The weights of a head or output share one second moment.",
                     "4 P of moments, and one number a head or output, for 8 P",
                     {"vibee.adam_mini_bytes"}};
  }
};

}  // namespace

const UpdateRuleFacts& adam_mini_facts() {
  static const AdamMiniFacts facts;
  return facts;
}

}  // namespace moelab
