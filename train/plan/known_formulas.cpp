#include "train/plan/known_formulas.h"

#include "train/plan/formula.h"
#include "train/presets/parameter_count.h"

namespace moelab {

std::vector<KnownFormula> known_formulas(const Settings& s) {
  const ModelSettings& m = s.model;
  const double P = approximate_parameter_count(m), L = static_cast<double>(m.layers),
               B = static_cast<double>(s.train.micro_batch), S = static_cast<double>(s.train.row()),
               D = static_cast<double>(m.d_model), H = static_cast<double>(m.heads);
  const bool wide = s.precision.compute == ComputePrecision::fp32;
  const double bytes = wide ? 4 : 2;
  using Of = KnownFormula::Of;
  return {
      {"this program's", "state, activations and one block, term by term", peak_formula(s).peak, Of::peak,
       "what operators hold for a moment, and where in backward the two heights meet"},
      {"16 bytes a parameter", "16 P", 16 * P, Of::state,
       "other optimizers and precisions, and state that lies elsewhere or is consumed in backward"},
      {"dense transformer", "B S D L (34 + 5 H S / D)", bytes / 2 * B * S * D * L * (34 + 5 * H * S / D),
       Of::activations,
       "experts, recomputation and storage; it has a feed-forward of 4 D with GELU, dropout masks and the "
       "scores that flash attention never holds"},
      {"four tensors a layer", "B S D L 4 x bytes", 4 * bytes * B * S * D * L, Of::activations,
       "the feed-forward's inner width, queries, keys and values, and the experts"},
      {"scores", "B H S^2 L x bytes", bytes * B * H * S * S * L, Of::attention,
       "queries, keys, values and what is made of them; flash attention and recomputation, which keep no "
       "scores"},
      {"flash attention", "B S D L x bytes", bytes * B * S * D * L, Of::attention,
       "that queries, keys, values and output are four of these, and recomputation, which keeps none"}};
}

}  // namespace moelab
