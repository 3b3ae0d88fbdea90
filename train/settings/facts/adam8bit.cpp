#include "kernels/formats/quantize.h"
#include "train/settings/facts/update_rule.h"

// 8-bit Adam (kernels/update/adam8bit.h).
namespace moelab {
namespace {

class Adam8bitFacts : public UpdateRuleFacts {
 public:
  std::vector<StateSlot> layout(const WeightShape& weight) const override {
    const int64_t blocks = quant_blocks(elements_of({"", weight.shape}));
    return {{"m", weight.shape, ElementType::uint8},
            {"m_absmax", {blocks}},
            {"v", weight.shape, ElementType::uint8},
            {"v_absmax", {blocks}}};
  }
  Cut cut(const WeightShape& weight) const override {
    return {{elements_of({"", weight.shape})}, kQuantBlock};
  }
  bool is_adamw() const override { return true; }
  std::string_view cost_term() const override { return "update_adam8bit"; }
  std::optional<Technique> row() const override {
    return Technique{"adam8bit",
                     "8-bit Adam",
                     {{"optim.name", "adam8bit"}},
                     "Moments are rounded to 256 values a block.",
                     instead_of_moments("moments"),
                     {"vibee.adam8bit_bytes", "ava.optimizer_states", "vibee.fits_7b_on_24gb"}};
  }
};

}  // namespace

const UpdateRuleFacts& adam8bit_facts() {
  static const Adam8bitFacts facts;
  return facts;
}

}  // namespace moelab
