#include "train/predict/block_shape.h"

#include <algorithm>

#include "kernels/moe/dispatch.h"
#include "train/activations/recompute.h"
#include "train/settings/facts/precision.h"
#include "train/settings/presets/parameter_count.h"

namespace moelab {
namespace {

double capacity_of(const ModelSettings& m, int64_t sequence) {
  if (m.dense() || m.dispatch == Dispatch::dropless) return 0;
  return static_cast<double>(expert_capacity(sequence, m.experts_per_token, m.experts, m.capacity_factor));
}

}  // namespace

BlockShape::BlockShape(const Settings& s) {
  const ModelSettings& m = s.model;
  const auto sequence = static_cast<double>(s.train.row()), rows = static_cast<double>(s.train.micro_batch);
  tokens = rows * sequence;
  width = static_cast<double>(m.d_model);
  queries = static_cast<double>(m.heads * m.head());
  keys = static_cast<double>(m.kv() * m.head());
  hidden = static_cast<double>(m.d_expert);
  experts = static_cast<double>(m.experts);
  shared_hidden = m.dense() ? 0 : hidden * static_cast<double>(m.shared_experts);
  capacity = capacity_of(m, s.train.row());
  expert_rows = m.dense()      ? tokens
                : capacity > 0 ? rows * experts * capacity
                               : tokens * static_cast<double>(m.experts_per_token);
  element = element_bytes(s);
  const int64_t sharing = s.parallel.expert;  // ranks, each with its experts; shared experts stay whole
  double experts_of_all = 0;
  for (const BlockMatrix& matrix : block_matrices(m)) {
    const bool expert =
        matrix.part == MatrixPart::experts || (matrix.part == MatrixPart::feed_forward && sharing == 1);
    if (expert) experts_of_all += matrix.elements();
  }
  const double blocks = approximate_parameter_count(m) - outer_parameters(m);
  attention_parameters = blocks / static_cast<double>(m.layers) - experts_of_all;
  expert_parameters = experts_of_all / static_cast<double>(sharing);
}

double outer_parameters(const ModelSettings& m) {
  const double embedding = static_cast<double>(m.vocab) * static_cast<double>(m.d_model);
  return (m.tie_embeddings ? 1 : 2) * embedding + static_cast<double>(m.d_model);
}

WeightCounts weight_counts(const Settings& settings, const BlockShape& block) {
  return {static_cast<double>(settings.model.layers) * block.parameters(), outer_parameters(settings.model)};
}

double recomputed_blocks(const Settings& settings) {
  if (settings.activations.checkpoint == CheckpointMode::segments)
    return static_cast<double>(settings.model.layers);
  const std::vector<bool> flags = recomputed_layers(settings.activations, settings.model.layers);
  return static_cast<double>(std::count(flags.begin(), flags.end(), true));
}

double blocks_in_pieces(const Settings& settings) {
  const auto layers = static_cast<double>(settings.model.layers);
  const bool segments = settings.activations.checkpoint == CheckpointMode::segments;
  return segments ? layers : layers - recomputed_blocks(settings);
}

double kept_inputs(const Settings& settings) {
  const int64_t together = recomputed_together(settings.activations),
                segments = (settings.model.layers + together - 1) / together;
  return static_cast<double>(segments);
}

bool recomputes_piece(const Settings& settings, Piece piece) {
  const std::vector<Piece>& pieces = settings.activations.pieces;
  return std::find(pieces.begin(), pieces.end(), piece) != pieces.end();
}

}  // namespace moelab
