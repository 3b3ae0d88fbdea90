#include "train/parallel/schedule.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace moelab {

std::vector<PipelineAction> pipeline_actions(PipelineSchedule kind, int64_t stages, int64_t chunks,
                                             int64_t micro_batches, int64_t stage) {
  const bool interleaved = kind == PipelineSchedule::interleaved;
  TORCH_CHECK(interleaved ? micro_batches % stages == 0 : chunks == 1, chunks, " chunks on ", stages,
              " stages for ", micro_batches, " micro-batches");
  const int64_t passes = chunks * micro_batches, behind = stages - stage - 1;
  const int64_t filling = std::min(passes, interleaved ? 2 * behind + (chunks - 1) * stages : behind);
  // As many micro-batches as there are stages pass the first chunk, then the next.
  const auto forward = [&](int64_t k) {
    if (!interleaved) return PipelineAction{true, 0, k};
    return PipelineAction{true, k / stages % chunks, k / (stages * chunks) * stages + k % stages};
  };
  const auto backward = [&](int64_t k) {
    const PipelineAction mirrored = forward(k);
    return PipelineAction{false, chunks - 1 - mirrored.chunk, mirrored.micro_batch};
  };
  std::vector<PipelineAction> actions;
  for (int64_t k = 0; k < filling; ++k) actions.push_back(forward(k));
  for (int64_t k = filling; k < passes; ++k) {
    actions.push_back(forward(k));
    actions.push_back(backward(k - filling));
  }
  for (int64_t k = passes - filling; k < passes; ++k) actions.push_back(backward(k));
  return actions;
}

Stage stage_of(const ParallelSettings& pipeline, int64_t layers, int64_t stage) {
  const int64_t stages = pipeline.pipeline, chunks = pipeline.chunks;
  Stage part{.embedding = stage == 0, .head = stage + 1 == stages, .chunks = chunks};
  part.first = stage * layers / (stages * chunks);
  part.count = (stage + 1) * layers / (stages * chunks) - part.first;
  part.stride = layers / chunks;
  return part;
}

}  // namespace moelab
