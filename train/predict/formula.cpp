#include "train/predict/formula.h"

#include <algorithm>

#include "kernels/loss/linear_cross_entropy.h"
#include "train/activations/recompute.h"
#include "train/predict/block_shape.h"
#include "train/predict/rank_share.h"
#include "train/settings/facts/data_parallel.h"
#include "train/settings/facts/placement.h"
#include "train/settings/facts/precision.h"
#include "train/settings/facts/storage.h"

namespace moelab {
namespace {

// Bytes that a block keeps of one micro-batch, without its input, if it is not recomputed completely.
double kept_bytes(const Settings& s, const BlockShape& b) {
  const bool wide = s.precision.compute == ComputePrecision::fp32;
  const bool norms = recomputes_piece(s, Piece::norms), attention = recomputes_piece(s, Piece::attention),
             moe = recomputes_piece(s, Piece::moe), hidden = recomputes_piece(s, Piece::expert_hidden);
  const double stream = b.tokens * b.width * b.element;
  double bytes = stream;  // between the halves
  if (!attention) {
    bytes += (norms ? 0 : stream) + b.tokens * (2 * b.queries + 2 * b.keys) * b.element;
    const double row = static_cast<double>(s.train.row() * s.model.heads) * b.tokens;
    bytes += s.attention.kernel == AttentionKernel::materialised
                 ? row * (wide ? 4 : 2)
                 : 4 * b.tokens * static_cast<double>(s.model.heads);
  }
  if (moe) return bytes;
  if (s.parallel.expert > 1) bytes += b.expert_rows * b.width * b.element;  // rows of other ranks
  bytes += norms ? 0 : stream;
  if (!hidden) bytes += 2 * (b.expert_rows * b.hidden + b.tokens * b.shared_hidden) * b.element;
  if (s.model.dispatch == Dispatch::onehot && b.experts > 0) {
    bytes += (wide ? 8 : 12) * b.tokens * b.experts * b.capacity;
    bytes += b.expert_rows * (2 * b.width + b.hidden) * b.element;
  }
  return bytes + b.tokens * b.experts * 8;
}

// Bytes that blocks keep once they have run again, in backward: one block, or a segment with the inputs of
// its later blocks.
double repeated_bytes(const Settings& s, const BlockShape& b) {
  const auto together = static_cast<double>(std::min(recomputed_together(s.activations), s.model.layers));
  return together * kept_bytes(s, b) + (together - 1) * b.tokens * b.width * b.element;
}

double on_device(Home home, double bytes) { return home == Home::device ? bytes : 0; }

// Elements of the embedding, and of the head.
double largest_outside(const ModelSettings& m) { return static_cast<double>(m.vocab * m.d_model); }

// Block weights that are gathered on the device for products, in the form that these read: two blocks' at a
// time. Ranks that divide the weights gather an embedding or head besides, and may keep all blocks' until
// backward.
double gathered_weights(const Settings& s, const BlockShape& b) {
  const auto layers = static_cast<double>(s.model.layers);
  const bool divided = state_division(s).weights > 1;
  const double blocks = divided && !s.placement.reshard_after_forward ? layers : std::min(2.0, layers);
  return b.element * (blocks * b.parameters() + (divided ? largest_outside(s.model) : 0));
}

// Gradients under way between ranks: of one block, an expert block's two come together; with each, the
// versions of the ranks that this rank adds.
double exchanged_gradients(const Settings& s, const BlockShape& b) {
  const auto ranks = static_cast<double>(data_ranks(s));
  if (ranks < 2) return 0;
  const double versions = ranks / state_division(s).optimizer;
  const double elements = std::max(b.expert_parameters, largest_outside(s.model));
  return gradient_element_bytes(s) * elements * (1 + versions);
}

// Leaves in `state` what is on the device. Offloaded, coded or divided block weights are gathered there.
void place(StateBytes& state, const Settings& s, const BlockShape& b) {
  const auto layers = static_cast<double>(s.model.layers);
  const StateBytes blocks = state_formula(s, {layers * b.parameters(), 0});
  const bool coded = weight_code(s.precision).has_value(), away = s.placement.parameters != Home::device;
  if (away) state.weights -= blocks.weights;
  if (away && s.placement.optimizer == Home::device) state.masters -= blocks.masters;
  if (away || coded || state_division(s).weights > 1) state.weights += gathered_weights(s, b);
  state.masters = on_device(s.placement.optimizer, state.masters);
  state.optimizer = on_device(s.placement.optimizer, state.optimizer);
  const Home gradients = gradient_home(s.placement, s.run.device == DeviceChoice::cuda);
  if (gradients != Home::device || s.optim.in_backward) {
    state.gradients =
        state_formula(s, {0, std::max(b.expert_parameters, largest_outside(s.model))}).gradients;
  }
}

// Of what a rank has: its experts' state divides over the ranks that have the same.
StateBytes share_state(const Settings& s, const BlockShape& b) {
  const WeightCounts weights = weight_counts(s, b);
  if (s.parallel.expert == 1) return state_formula(s, weights);
  const double experts = static_cast<double>(s.model.layers) * b.expert_parameters;
  const StateBytes shared = state_formula(s, {weights.in_blocks - experts, weights.outside}),
                   own = state_formula(replicas_of_experts(s), {experts, 0});
  return {.weights = shared.weights + own.weights,
          .masters = shared.masters + own.masters,
          .gradients = shared.gradients + own.gradients,
          .optimizer = shared.optimizer + own.optimizer};
}

// Of a rank's share of a run, with so many micro-batches under way; `head`: it computes the loss.
PeakFormula share_peak(const Settings& s, double under_way, bool head_here) {
  const BlockShape b(s);
  const double head = head_here ? largest_outside(s.model) : 0;
  PeakFormula f;
  f.state = share_state(s, b);
  const double gradients = f.state.gradients;
  place(f.state, s, b);
  const bool gathered = f.state.gradients < gradients;  // consumed or moved away one by one
  const bool summed = s.train.accumulation > 1 && !gathered;
  f.activations = under_way * stored_bytes(s, saved_bytes(s), Home::device);
  const double logits = head_here ? b.tokens * static_cast<double>(s.model.vocab) * b.element : 0;
  const auto logit_chunk = static_cast<double>(logit_chunk_bytes(
      s.run.device == DeviceChoice::cuda, s.model.vocab * s.model.d_model * static_cast<int64_t>(b.element)));
  const double gradients_of_head = 4 * head + b.tokens * b.width * b.element;
  f.loss_head = gradients_of_head + std::min(logits, logit_chunk);
  const double repeated = recomputed_blocks(s) > 0 ? repeated_bytes(s, b) : 0;
  f.working =
      repeated + 3 * b.tokens * b.width * b.element + 2 * b.expert_rows * b.hidden * b.element / b.experts;
  if (s.model.dense()) f.working = repeated + 3 * b.tokens * b.width * b.element;
  const double held = f.state.weights + f.state.masters + f.state.optimizer;
  const double begins = f.activations + std::max(f.loss_head, f.working) + gradients_of_head / 2 +
                        (summed ? f.state.gradients : 0);
  const double others = f.activations * (under_way - 1) / under_way;  // of micro-batches that still wait
  const double ends = f.state.gradients + f.working + exchanged_gradients(s, b) + others;
  f.peak = held + std::max(begins, ends);
  return f;
}

// Micro-batches whose activations a stage holds at most.
double under_way(const Settings& s, int64_t stage) {
  const ParallelSettings& p = s.parallel;
  const int64_t behind = p.pipeline - stage - 1, passes = p.chunks * s.train.accumulation;
  const int64_t most =
      p.schedule == PipelineSchedule::interleaved ? 2 * behind + (p.chunks - 1) * p.pipeline : behind;
  return static_cast<double>(std::min(most + 1, passes)) / static_cast<double>(p.chunks);
}

PeakFormula stage_peak(const Settings& s, int64_t stage) {
  Settings share = rank_share(s, stage);
  share.model.tie_embeddings = true;  // an end of the pipeline has one of the two
  return share_peak(share, under_way(s, stage), stage + 1 == s.parallel.pipeline);
}

}  // namespace

StateBytes state_formula(const Settings& s, const WeightCounts& weights) {
  const UpdateRuleFacts& rule = update_rule_facts(s.optim);
  const bool wide = s.precision.compute == ComputePrecision::fp32;
  const double parameters = weights.total(), of_rule = rule.bytes_per_parameter(false);
  const StateDivision ranks = state_division(s);
  const bool summed = s.train.accumulation * data_ranks(s) > 1;
  StateBytes state;
  state.weights = parameters * (weight_code(s.precision) ? kCodedBytes : element_bytes(s)) / ranks.weights;
  state.masters = !wide && keeps_masters(s) ? 4 * parameters / ranks.optimizer : 0;
  state.gradients = parameters * (summed ? sum_bytes(s) : element_bytes(s)) / ranks.gradients;
  state.optimizer = (parameters * of_rule + weights.in_blocks * (rule.bytes_per_parameter(true) - of_rule)) /
                    ranks.optimizer;
  return state;
}

double saved_bytes(const Settings& s) {
  const BlockShape b(s);
  const double whole = recomputed_blocks(s), layers = static_cast<double>(s.model.layers);
  return kept_inputs(s) * b.tokens * b.width * b.element + (layers - whole) * kept_bytes(s, b);
}

PeakFormula peak_formula(const Settings& s) {
  if (s.parallel.pipeline == 1) return share_peak(rank_share(s, 0), 1, true);
  const PeakFormula first = stage_peak(s, 0), last = stage_peak(s, s.parallel.pipeline - 1);
  return first.peak > last.peak ? first : last;
}

}  // namespace moelab
