#include "train/optim/update_rule.h"

#include "kernels/adafactor.h"
#include "kernels/adam8bit.h"
#include "kernels/adam_mini.h"
#include "kernels/adamw.h"
#include "kernels/adamw_compact.h"
#include "kernels/compact_format.h"
#include "kernels/momentum_step.h"
#include "kernels/quantize.h"

namespace moelab {
namespace {

using at::Tensor;

std::vector<int64_t> shape_of(const Parameter& p) { return p.value.sizes().vec(); }

// What a rule steps: the fp32 weights, or the bf16 ones that have no master.
const Tensor& stepped(const Parameter& p) { return p.master.defined() ? p.master : p.value; }

// The 16-bit value that follows an fp32 master.
std::optional<Tensor> compute_copy(const Parameter& p) {
  const bool follows = p.has_master_copy();
  return follows ? std::optional(p.value) : std::nullopt;
}

class AdamWRule : public UpdateRule {
 public:
  explicit AdamWRule(c10::ScalarType moments) : moments_(moments) {}

  std::vector<StateSlot> layout(const Parameter& p) const override {
    return {{"m", shape_of(p), moments_}, {"v", shape_of(p), moments_}};
  }
  void step(const Parameter& p, const Tensor& gradient, const State& state,
            const OptimizerStep& numbers) const override {
    adamw_(stepped(p), gradient, state[0], state[1], compute_copy(p), numbers);
  }

 private:
  c10::ScalarType moments_;
};

class Adam8bitRule : public UpdateRule {
 public:
  std::vector<StateSlot> layout(const Parameter& p) const override {
    const int64_t blocks = quant_blocks(p.value.numel());
    return {{"m", shape_of(p), c10::kByte},
            {"m_absmax", {blocks}},
            {"v", shape_of(p), c10::kByte},
            {"v_absmax", {blocks}}};
  }
  Cut cut(const Parameter& p) const override { return {{p.value.numel()}, kQuantBlock}; }
  void step(const Parameter& p, const Tensor& gradient, const State& state,
            const OptimizerStep& numbers) const override {
    adam8bit_(stepped(p), gradient, {state[0], state[1], state[2], state[3]}, compute_copy(p), numbers);
  }
};

class CompactRule : public UpdateRule {
 public:
  bool keeps_masters() const override { return false; }
  std::vector<StateSlot> layout(const Parameter& p) const override {
    const int64_t groups = quant_blocks(p.value.numel(), kCompactGroup);
    std::vector<StateSlot> slots = {{"m", shape_of(p), c10::kChar},
                                    {"m_scale", {groups}, c10::kShort},
                                    {"v", shape_of(p), c10::kByte},
                                    {"v_scale", {groups}, c10::kShort}};
    if (has_correction(p)) slots.push_back({"correction", shape_of(p), c10::kChar, Kind::master});
    return slots;
  }
  Cut cut(const Parameter& p) const override { return {{p.value.numel()}, kCompactGroup}; }
  void step(const Parameter& p, const Tensor& gradient, const State& state,
            const OptimizerStep& numbers) const override {
    const auto correction = has_correction(p) ? std::optional(state[4]) : std::nullopt;
    adamw_compact_(p.value, gradient, {state[0], state[1], state[2], state[3], correction}, numbers);
  }
  Tensor joined(const Parameter& p, const State& state) const override {
    return joined_weights(p.value, state.at(4));
  }
  void split(const Tensor& fp32, const Parameter& p, const State& state) const override {
    split_weights_(fp32, p.value, state.at(4));
  }

 private:
  static bool has_correction(const Parameter& p) { return p.value.scalar_type() == at::kBFloat16; }
};

class AdamMiniRule : public UpdateRule {
 public:
  std::vector<StateSlot> layout(const Parameter& p) const override {
    return {{"m", shape_of(p)}, {"v", {blocks_of(p).count()}}};
  }
  Cut cut(const Parameter& p) const override {
    const int64_t rows = blocks_of(p).rows;
    return {{rows, p.value.numel() / rows}, p.heads > 0 ? p.head_rows : 1};
  }
  void step(const Parameter& p, const Tensor& gradient, const State& state,
            const OptimizerStep& numbers) const override {
    adam_mini_(stepped(p), gradient, state[0], state[1], blocks_of(p), compute_copy(p), numbers);
  }

 private:
  // A matrix of experts has the rows of all of them; a vector is one.
  static MiniBlocks blocks_of(const Parameter& p) {
    const int64_t rows = p.value.dim() > 1 ? p.value.numel() / p.value.size(-1) : 1;
    return {rows, p.heads, p.head_rows};
  }
};

class MomentumRuleOf : public UpdateRule {
 public:
  explicit MomentumRuleOf(MomentumRule rule) : rule_(rule) {}

  std::vector<StateSlot> layout(const Parameter& p) const override { return {{"m", shape_of(p)}}; }
  void step(const Parameter& p, const Tensor& gradient, const State& state,
            const OptimizerStep& numbers) const override {
    momentum_step_(rule_, stepped(p), gradient, state[0], compute_copy(p), numbers);
  }

 private:
  MomentumRule rule_;
};

class AdafactorRule : public UpdateRule {
 public:
  std::vector<StateSlot> layout(const Parameter& p) const override {
    std::vector<int64_t> row = shape_of(p), column = shape_of(p);
    if (!row.empty()) row.pop_back();
    if (column.size() > 1) column.erase(column.end() - 2);
    return {{"row", row}, {"column", column}};
  }
  // A matrix at a time: its columns' means.
  Cut cut(const Parameter& p) const override {
    const int64_t columns = p.value.dim() > 0 ? p.value.size(-1) : 1,
                  rows = p.value.dim() > 1 ? p.value.size(-2) : 1;
    return {{p.value.numel() / (rows * columns), rows, columns}};
  }
  void step(const Parameter& p, const Tensor& gradient, const State& state,
            const OptimizerStep& numbers) const override {
    adafactor_(stepped(p), gradient, state[0], state[1], compute_copy(p), numbers);
  }
};

}  // namespace

int64_t elements_of(const StateSlot& slot) { return c10::multiply_integers(slot.shape); }

int64_t bytes_of(const StateSlot& slot) {
  return elements_of(slot) * static_cast<int64_t>(c10::elementSize(slot.dtype));
}

Tensor UpdateRule::joined(const Parameter& parameter, const State&) const {
  return parameter.value.detach().to(at::kFloat);
}

void UpdateRule::split(const Tensor& fp32, const Parameter& parameter, const State&) const {
  parameter.value.detach().copy_(fp32);
}

std::unique_ptr<UpdateRule> make_update_rule(const OptimSettings& settings) {
  switch (settings.name) {
    case OptimizerName::adamw:
      return std::make_unique<AdamWRule>(settings.state == OptimizerState::bf16 ? c10::kBFloat16
                                                                                : c10::kFloat);
    case OptimizerName::adam8bit:
      return std::make_unique<Adam8bitRule>();
    case OptimizerName::adamw_compact:
      return std::make_unique<CompactRule>();
    case OptimizerName::adam_mini:
      return std::make_unique<AdamMiniRule>();
    case OptimizerName::lion:
      return std::make_unique<MomentumRuleOf>(MomentumRule::lion);
    case OptimizerName::adafactor:
      return std::make_unique<AdafactorRule>();
    case OptimizerName::sgd:
      return std::make_unique<MomentumRuleOf>(MomentumRule::sgd);
  }
  TORCH_CHECK(false, "no such optimizer");
}

std::string state_formula(const OptimSettings& settings) {
  switch (settings.name) {
    case OptimizerName::adamw:
      return settings.state == OptimizerState::bf16 ? "4 P (m and v in bf16)" : "8 P (m and v in fp32)";
    case OptimizerName::adam8bit:
      return "2 (1 + 4/256) P (m and v in 8 bits, a scale for 256)";
    case OptimizerName::adamw_compact:
      return "(1 + 2 (1 + 2/32)) P (8-bit correction, m and v in 8 bits, a scale for 32)";
    case OptimizerName::adam_mini:
      return "4 P (m in fp32) + 4 for each head, output neuron or expert row";
    case OptimizerName::lion:
    case OptimizerName::sgd:
      return "4 P (m in fp32)";
    case OptimizerName::adafactor:
      return "4 (rows + columns) of each matrix";
  }
  TORCH_CHECK(false, "no such optimizer");
}

}  // namespace moelab
