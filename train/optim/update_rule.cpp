#include "train/optim/update_rule.h"

#include "kernels/update/adafactor.h"
#include "kernels/update/adam8bit.h"
#include "kernels/update/adam_mini.h"
#include "kernels/update/adamw.h"
#include "kernels/update/adamw_compact.h"
#include "kernels/update/momentum_step.h"
#include "kernels/update/muon.h"

namespace moelab {
namespace {

using at::Tensor;
using State = UpdateRule::State;

// The tensor that a rule steps: the fp32 weights, or bf16 weights without a master.
const Tensor& stepped(const Parameter& p) { return p.master.defined() ? p.master : p.value; }

// The 16-bit value rounded from an fp32 master.
std::optional<Tensor> compute_copy(const Parameter& p) {
  const bool follows = p.has_master_copy();
  return follows ? std::optional(p.value) : std::nullopt;
}

bool is_bf16(const Parameter& p) { return p.value.scalar_type() == at::kBFloat16; }

WeightShape shape_of(const Parameter& p) {
  return {p.value.sizes().vec(), is_bf16(p), p.hidden, p.heads, p.head_rows};
}

void adamw_compact(const Parameter& p, const Tensor& gradient, const State& s, const OptimizerStep& numbers) {
  const auto correction = is_bf16(p) ? std::optional(s[4]) : std::nullopt;
  adamw_compact_(p.value, gradient, {s[0], s[1], s[2], s[3], correction}, numbers);
}

void adam_mini(const Parameter& p, const Tensor& gradient, const State& s, const OptimizerStep& numbers) {
  adam_mini_(stepped(p), gradient, s[0], s[1], {rows_of(shape_of(p)), p.heads, p.head_rows}, compute_copy(p),
             numbers);
}

template <MomentumRule rule>
void momentum(const Parameter& p, const Tensor& gradient, const State& s, const OptimizerStep& numbers) {
  momentum_step_(rule, stepped(p), gradient, s[0], compute_copy(p), numbers);
}

void muon(const Parameter& p, const Tensor& gradient, const State& s, const OptimizerStep& numbers) {
  if (p.hidden) return muon_(stepped(p), gradient, s[0], compute_copy(p), numbers);
  adamw_(stepped(p), gradient, s[0], s[1], compute_copy(p), numbers);
}

struct Entry {
  OptimizerName name;
  UpdateRule::Step step;
};

// The operator of each rule, given the state as the rule lays it out.
constexpr Entry kSteps[] = {
    {OptimizerName::adamw,
     [](const Parameter& p, const Tensor& gradient, const State& s, const OptimizerStep& numbers) {
       adamw_(stepped(p), gradient, s[0], s[1], compute_copy(p), numbers);
     }},
    {OptimizerName::adam8bit,
     [](const Parameter& p, const Tensor& gradient, const State& s, const OptimizerStep& numbers) {
       adam8bit_(stepped(p), gradient, {s[0], s[1], s[2], s[3]}, compute_copy(p), numbers);
     }},
    {OptimizerName::adamw_compact, adamw_compact},
    {OptimizerName::adam_mini, adam_mini},
    {OptimizerName::lion, momentum<MomentumRule::lion>},
    {OptimizerName::adafactor,
     [](const Parameter& p, const Tensor& gradient, const State& s, const OptimizerStep& numbers) {
       adafactor_(stepped(p), gradient, s[0], s[1], compute_copy(p), numbers);
     }},
    {OptimizerName::sgd, momentum<MomentumRule::sgd>},
    {OptimizerName::muon, muon},
};

UpdateRule::Step step_of(OptimizerName name) {
  for (const Entry& entry : kSteps)
    if (entry.name == name) return entry.step;
  TORCH_CHECK(false, "no such optimizer");
}

}  // namespace

c10::ScalarType scalar_type(ElementType type) {
  switch (type) {
    case ElementType::fp32:
      return c10::kFloat;
    case ElementType::bf16:
      return c10::kBFloat16;
    case ElementType::fp16:
      return c10::kHalf;
    case ElementType::int16:
      return c10::kShort;
    case ElementType::int8:
      return c10::kChar;
    case ElementType::uint8:
      break;
  }
  return c10::kByte;
}

UpdateRule::UpdateRule(const OptimSettings& settings)
    : facts_(update_rule_facts(settings)), step_(step_of(settings.name)) {}

std::vector<StateSlot> UpdateRule::layout(const Parameter& parameter) const {
  return facts_.layout(shape_of(parameter));
}

Cut UpdateRule::cut(const Parameter& parameter) const { return facts_.cut(shape_of(parameter)); }

Tensor UpdateRule::joined(const Parameter& parameter, const State& state) const {
  return keeps_masters() ? parameter.value.detach().to(at::kFloat)
                         : joined_weights(parameter.value, state.at(4));
}

void UpdateRule::split(const Tensor& fp32, const Parameter& parameter, const State& state) const {
  if (keeps_masters()) {
    parameter.value.detach().copy_(fp32);
  } else {
    split_weights_(fp32, parameter.value, state.at(4));
  }
}

}  // namespace moelab
