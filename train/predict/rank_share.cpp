#include "train/predict/rank_share.h"

#include "moe/settings/rank_model.h"
#include "train/parallel/schedule.h"
#include "train/predict/block_shape.h"
#include "train/settings/facts/precision.h"

namespace moelab {

Settings rank_share(const Settings& s, int64_t stage) {
  if (s.parallel.tensor == 1 && s.parallel.pipeline == 1) return s;
  Settings share = s;
  share.model = rank_model(s.model, s.parallel.tensor);
  if (s.parallel.pipeline > 1) {
    share.model.layers = stage_of(s.parallel, s.model.layers, stage).blocks();
    const auto layers = static_cast<double>(s.model.layers);
    if (s.activations.checkpoint == CheckpointMode::layers) {  // as many of a stage's as of all
      share.activations.checkpoint = CheckpointMode::ratio;
      share.activations.ratio = recomputed_blocks(s) / layers;
      share.activations.layers.clear();
    }
  }
  share.parallel.tensor = share.parallel.pipeline = share.parallel.chunks = 1;
  share.parallel.schedule = PipelineSchedule::one_forward_one_backward;
  return share;
}

Settings replicas_of_experts(const Settings& s) {
  Settings replicas = s;
  replicas.parallel.data /= s.parallel.expert;
  replicas.parallel.expert = 1;
  return replicas;
}

SentBytes sent_bytes_of_experts(const Settings& s, double weights) {
  SentBytes sent = sent_bytes(replicas_of_experts(s), {weights, 0});
  const bool adds_first = s.parallel.reduce == Reduction::step && s.train.accumulation > 1;
  if (!adds_first) sent.gradients *= static_cast<double>(s.parallel.expert);
  return sent;
}

PassExchanges pass_exchanges(const Settings& s, const Settings& share) {
  const BlockShape block(share);
  const double stream = block.tokens * block.width * block.element;
  const double again = recomputed_blocks(share) / static_cast<double>(share.model.layers);
  PassExchanges e;
  if (s.parallel.tensor > 1) {
    const auto ranks = static_cast<double>(s.parallel.tensor);
    e.sum = {2, 2 * (ranks - 1) / ranks * stream};  // each part to its adder, and back
    e.sums_forward = 2 * e.sum;
    e.sums_backward = (2 + 2 * again) * e.sum;
  }
  if (s.parallel.expert > 1) {
    const auto ranks = static_cast<double>(s.parallel.expert);
    const double row = 2 * block.width * block.element + 4;  // there and back, with its router weight
    const double counts = s.model.dispatch == Dispatch::dropless ? 1 : 0;
    e.rows_forward = {2 + counts, (ranks - 1) / ranks * block.expert_rows * row};
    e.rows_backward = (1 + again) * Exchange{2, e.rows_forward.bytes};
  }
  if (s.parallel.pipeline > 1) e.handed = {1, stream + (s.model.dense() ? 0 : 8)};
  return e;
}

}  // namespace moelab
