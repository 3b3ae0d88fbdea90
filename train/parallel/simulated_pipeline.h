#pragma once
#include <cstdint>
#include <vector>

#include "train/parallel/schedule.h"

namespace moelab {

// Seconds of one pass through one chunk of a stage.
struct PassSeconds {
  double forward, backward;
};

// One step of a pipeline, played with times. A stage waits for what it receives, and before a send for its
// last message in the same direction to have been received. (The trainer asks for messages one pass ahead, so
// that a send may wait less than here.)
struct SimulatedPipeline {
  bool finished = false;            // false: stages wait for each other for ever
  double seconds = 0;               // of the whole step
  std::vector<double> waited = {};  // of each stage: seconds of the step without a pass
  std::vector<int64_t> most_under_way =
      {};  // of each stage: passes whose backward pass is to come, at their most

  // The part of the step in which this stage does not compute.
  double bubble(int64_t stage) const { return waited.at(stage) / seconds; }
};
// `actions`: of each stage, as pipeline_actions gives them for `chunks` chunks; `message`: seconds that what
// a stage hands on is under way.
SimulatedPipeline simulate_pipeline(const std::vector<std::vector<PipelineAction>>& actions, int64_t chunks,
                                    const std::vector<PassSeconds>& stages, double message = 0);

}  // namespace moelab
