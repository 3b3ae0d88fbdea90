#include "kernels/formats/compact_format.h"
#include "train/settings/facts/require.h"
#include "train/settings/facts/update_rule.h"

// Compact AdamW (kernels/update/adamw_compact.h): bf16 weights with an 8-bit correction, 8-bit moments.
namespace moelab {
namespace {

class AdamWCompactFacts : public UpdateRuleFacts {
 public:
  std::vector<StateSlot> layout(const WeightShape& weight) const override {
    const int64_t groups = quant_blocks(elements_of({"", weight.shape}), kCompactGroup);
    std::vector<StateSlot> slots = {{"m", weight.shape, ElementType::int8},
                                    {"m_scale", {groups}, ElementType::int16},
                                    {"v", weight.shape, ElementType::uint8},
                                    {"v_scale", {groups}, ElementType::int16}};
    if (weight.is_bf16) slots.push_back({"correction", weight.shape, ElementType::int8, Kind::master});
    return slots;
  }
  Cut cut(const WeightShape& weight) const override {
    return {{elements_of({"", weight.shape})}, kCompactGroup};
  }
  bool keeps_masters() const override { return false; }
  bool is_adamw() const override { return true; }
  std::string_view cost_term() const override { return "update_adamw_compact"; }

  void check(const Settings& s) const override {
    const PrecisionSettings& p = s.precision;
    require(p.compute == ComputePrecision::bf16 || p.compute == ComputePrecision::fp8,
            "optim.name=adamw_compact with " + named("precision.compute", p.compute) +
                ": compact AdamW splits bf16 weights; set precision.compute=bf16");
    require(p.master == MasterWeights::fp32, "optim.name=adamw_compact with " +
                                                 named("precision.master", p.master) +
                                                 ": compact AdamW never keeps masters, its 8-bit correction "
                                                 "replaces them; leave precision.master at fp32");
  }
  std::optional<Technique> row() const override {
    return Technique{
        "adamw_compact",
        "compact AdamW: bf16 weights with an 8-bit correction, 8-bit moments",
        {{"precision.compute", "bf16"}, {"optim.name", "adamw_compact"}},
        "Weights have 16 significant bits between steps, moments 8.",
        "as bf16, with " + instead_of_moments("corrections and moments") + " of moments and 4 P of masters",
        {"vibee.adamw_bytes", "ava.optimizer_states"}};
  }
};

}  // namespace

const UpdateRuleFacts& adamw_compact_facts() {
  static const AdamWCompactFacts facts;
  return facts;
}

}  // namespace moelab
