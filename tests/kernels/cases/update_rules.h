#pragma once
#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "kernels/formats/quantize.h"
#include "kernels/update/adafactor.h"
#include "kernels/update/adam8bit.h"
#include "kernels/update/adam_mini.h"
#include "kernels/update/adamw.h"
#include "kernels/update/momentum_step.h"

// The update rules that step a matrix of weights as SteppedWeights (kernels/update/stepped_weights.h) stores
// them.
namespace moelab::test {

struct UpdateRule {
  using State = std::vector<at::Tensor>;
  const char* name;
  State (*make_state)(int64_t rows, int64_t columns);
  void (*step)(const at::Tensor& weights, const at::Tensor& gradient, const State& state,
               const std::optional<at::Tensor>& copy, const OptimizerStep& numbers);
};

inline std::vector<UpdateRule> update_rules() {
  using at::Tensor;
  using State = UpdateRule::State;
  using Copy = std::optional<Tensor>;
  const auto two = [](int64_t rows, int64_t columns) {
    return State{at::zeros({rows, columns}), at::zeros({rows, columns})};
  };
  const auto narrow = [](int64_t rows, int64_t columns) {
    return State{at::zeros({rows, columns}, at::kBFloat16), at::zeros({rows, columns}, at::kBFloat16)};
  };
  const auto coded = [](int64_t rows, int64_t columns) {
    const int64_t blocks = quant_blocks(rows * columns);
    return State{at::zeros({rows, columns}, at::kByte), at::zeros({blocks}),
                 at::zeros({rows, columns}, at::kByte), at::zeros({blocks})};
  };
  const auto heads = [](int64_t rows, int64_t columns) {
    return State{at::zeros({rows, columns}), at::zeros({MiniBlocks{rows, 2, 3}.count()})};
  };
  const auto one = [](int64_t rows, int64_t columns) { return State{at::zeros({rows, columns})}; };
  const auto factors = [](int64_t rows, int64_t columns) {
    return State{at::zeros({rows}), at::zeros({columns})};
  };
  const auto adamw = [](const Tensor& w, const Tensor& g, const State& s, const Copy& copy,
                        const OptimizerStep& n) { adamw_(w, g, s[0], s[1], copy, n); };
  return {{"adamw", two, adamw},
          {"adamw_bf16_moments", narrow, adamw},
          {"adam8bit", coded,
           [](const Tensor& w, const Tensor& g, const State& s, const Copy& copy, const OptimizerStep& n) {
             adam8bit_(w, g, {s[0], s[1], s[2], s[3]}, copy, n);
           }},
          {"adam_mini", heads,
           [](const Tensor& w, const Tensor& g, const State& s, const Copy& copy, const OptimizerStep& n) {
             adam_mini_(w, g, s[0], s[1], {w.size(0), 2, 3}, copy, n);
           }},
          {"lion", one,
           [](const Tensor& w, const Tensor& g, const State& s, const Copy& copy, const OptimizerStep& n) {
             momentum_step_(MomentumRule::lion, w, g, s[0], copy, n);
           }},
          {"sgd", one,
           [](const Tensor& w, const Tensor& g, const State& s, const Copy& copy, const OptimizerStep& n) {
             momentum_step_(MomentumRule::sgd, w, g, s[0], copy, n);
           }},
          {"adafactor", factors,
           [](const Tensor& w, const Tensor& g, const State& s, const Copy& copy, const OptimizerStep& n) {
             adafactor_(w, g, s[0], s[1], copy, n);
           }}};
}

}  // namespace moelab::test
