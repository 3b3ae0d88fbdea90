#pragma once
#include <cstdint>
#include <vector>

#include "moe/stage.h"
#include "train/settings/technique_settings.h"

namespace moelab {

// One pass of a micro-batch through one chunk of a pipeline's stage: forward, or backward.
struct PipelineAction {
  bool forward;
  int64_t chunk, micro_batch;
  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

// What a stage does in one step, in order. Between passes, each stage first receives what the pass needs, and
// hands on what it gives; a send need not have been received before the next send in its direction.
//
// 1f1b: after the passes that fill the pipeline, a stage takes a forward and a backward pass in turns, so
// that at most stages - stage passes are under way (Narayanan 2019, PipeDream; Fan 2021, DAPPLE). Chunks must
// be 1. interleaved: a stage has several chunks of the model, a pass through one takes that much less, and so
// does the time in which the pipeline fills and drains (Narayanan 2021, arXiv 2104.04473). The stages must
// divide the micro-batches.
//
// At equal times of all stages, a stage waits for (stages - 1) / (chunks * micro_batches + stages - 1) of the
// step in both. Each chunk takes the backward passes in the micro-batches' order.
std::vector<PipelineAction> pipeline_actions(PipelineSchedule kind, int64_t stages, int64_t chunks,
                                             int64_t micro_batches, int64_t stage);

// The layers of a model that a stage of this pipeline has. With 1f1b the last stages have one more where the
// stages don't divide the layers.
Stage stage_of(const ParallelSettings& pipeline, int64_t layers, int64_t stage);

}  // namespace moelab
