#include "train/settings/facts/update_rule.h"

// Adafactor (kernels/update/adafactor.h): row and column means of the second moment.
namespace moelab {
namespace {

class AdafactorFacts : public UpdateRuleFacts {
 public:
  std::vector<StateSlot> layout(const WeightShape& weight) const override {
    std::vector<int64_t> row = weight.shape, column = weight.shape;
    if (!row.empty()) row.pop_back();
    if (column.size() > 1) column.erase(column.end() - 2);
    return {{"row", row}, {"column", column}};
  }
  // A cut keeps matrices whole: column means need all rows.
  Cut cut(const WeightShape& weight) const override { return cut_by_matrix(weight); }
  std::string formula() const override { return "4 (rows + columns) of each matrix"; }
  std::string_view cost_term() const override { return "update_adafactor"; }
  std::optional<Technique> row() const override {
    return Technique{"adafactor",
                     "Adafactor",
                     {{"optim.name", "adafactor"}},
                     "The second moment is a product of row and column means, and there is no first one.",
                     "a row and a column of each matrix for 8 P",
                     {"ava.optimizer_states", "ava.static_100m_fp16"}};
  }
};

}  // namespace

const UpdateRuleFacts& adafactor_facts() {
  static const AdafactorFacts facts;
  return facts;
}

}  // namespace moelab
