#include "train/predict/known_formulas.h"

#include <initializer_list>

#include "train/predict/formula.h"
#include "train/settings/facts/precision.h"
#include "train/settings/facts/storage.h"
#include "train/settings/facts/update_rule.h"
#include "train/settings/presets/parameter_count.h"

namespace moelab {
namespace {

struct Part {
  bool there;
  const char* name;
};

std::string listed(std::initializer_list<Part> parts) {
  std::string text;
  for (const Part& part : parts)
    if (part.there) text += (text.empty() ? "" : ", ") + std::string(part.name);
  return text;
}

// What a run does not keep of the activations that a formula counts, including scores and dropout masks if it
// has them.
std::string activations_not_kept(const Settings& s, bool scores, bool masks) {
  const StorageFacts& storage = storage_facts(s.activations.storage);
  return listed({{masks, "dropout masks"},
                 {scores && s.attention.kernel != AttentionKernel::materialised,
                  "scores, which this attention kernel never holds"},
                 {s.activations.checkpoint != CheckpointMode::none || !s.activations.pieces.empty(),
                  "what backward recomputes"},
                 {storage.code.has_value(), "more than a byte of an element that is stored in 8 bits"},
                 {storage.home == Home::host, "what lies on the host"},
                 {storage.home == Home::nvme, "what lies in files"}});
}

std::string state_not_kept(const Settings& s) {
  const bool wide = s.precision.compute == ComputePrecision::fp32;
  const UpdateRuleFacts& rule = update_rule_facts(s.optim);
  return listed({{!wide && s.precision.master == MasterWeights::none, "fp32 masters"},
                 {weight_code(s.precision).has_value(), "16-bit weights of the blocks, which wait in 8 bits"},
                 {!rule.is_adamw() || rule.bytes_per_parameter(true) != 8,
                  "AdamW's two moments in fp32, in place of which this rule has its own"},
                 {s.optim.in_backward, "gradients, each of which backward consumes"}});
}

}  // namespace

std::vector<KnownFormula> known_formulas(const Settings& s) {
  if (s.parallel.data > 1 && (s.parallel.zero > 0 || s.parallel.expert > 1)) return {};
  if (s.parallel.pipeline > 1 || s.parallel.tensor > 1) return {};
  const ModelSettings& m = s.model;
  const double P = approximate_parameter_count(m), L = static_cast<double>(m.layers),
               B = static_cast<double>(s.train.micro_batch), S = static_cast<double>(s.train.row()),
               D = static_cast<double>(m.d_model), H = static_cast<double>(m.heads);
  const bool wide = s.precision.compute == ComputePrecision::fp32;
  const double bytes = wide ? 4 : 2;
  const std::string moment = "what operators hold for a moment",
                    recomputed = activations_not_kept(s, false, false),
                    rows = m.dense() ? "" : "experts' rows and routing, ";
  using Of = KnownFormula::Of;
  return {{"this program's", "state, activations and one block, term by term", peak_formula(s).peak, Of::peak,
           "", moment + ", and where in backward the two heights meet"},
          {"16 bytes a parameter", "16 P", 16 * P, Of::state, state_not_kept(s),
           sum_bytes(s) > element_bytes(s) && s.train.accumulation > 1 ? "that accumulated gradients are fp32"
                                                                       : ""},
          {"dense transformer", "B S D L (34 + 5 H S / D)", bytes / 2 * B * S * D * L * (34 + 5 * H * S / D),
           Of::activations, activations_not_kept(s, true, true),
           rows + "the gated feed-forward's own width for its 4 D with GELU, " + moment},
          {"four tensors a layer", "B S D L 4 x bytes", 4 * bytes * B * S * D * L, Of::activations,
           recomputed, rows + "the feed-forward's inner width, queries, keys and values, " + moment},
          {"scores", "B H S^2 L x bytes", bytes * B * H * S * S * L, Of::attention,
           activations_not_kept(s, true, false), "queries, keys, values and what is made of them"},
          {"flash attention", "B S D L x bytes", bytes * B * S * D * L, Of::attention, recomputed,
           "that queries, keys, values and output are four of these, " + moment}};
}

}  // namespace moelab
