// Plays one step of a pipeline, with given times of its messages and its stages' passes.
//
//   bench_pipeline CHUNKS MICRO_BATCHES MESSAGE FORWARD BACKWARD [FORWARD BACKWARD …]
//
// MESSAGE: seconds that what a stage hands on is under way. Seconds of one pass through one chunk, forward
// and backward, of each stage. 1f1b with one chunk, else interleaved. Prints one line of JSON: {"seconds": of
// the step, "bubble": [each stage's share of it without a pass]}.
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "train/parallel/simulated_pipeline.h"

int main(int count, char** words) {
  if (count < 6 || count % 2 == 1) {
    std::cerr << "bench_pipeline: give CHUNKS MICRO_BATCHES MESSAGE, then FORWARD BACKWARD of each stage\n";
    return 2;
  }
  using namespace moelab;
  const int64_t chunks = std::atoll(words[1]), micro_batches = std::atoll(words[2]), stages = (count - 4) / 2;
  const auto kind = chunks > 1 ? PipelineSchedule::interleaved : PipelineSchedule::one_forward_one_backward;
  std::vector<PassSeconds> seconds;
  std::vector<std::vector<PipelineAction>> actions;
  for (int64_t stage = 0; stage < stages; ++stage) {
    seconds.push_back({std::atof(words[4 + 2 * stage]), std::atof(words[5 + 2 * stage])});
    actions.push_back(pipeline_actions(kind, stages, chunks, micro_batches, stage));
  }
  const SimulatedPipeline played = simulate_pipeline(actions, chunks, seconds, std::atof(words[3]));
  std::vector<double> bubbles;
  for (int64_t stage = 0; stage < stages; ++stage) bubbles.push_back(played.bubble(stage));
  std::cout << nlohmann::json{{"seconds", played.seconds}, {"bubble", bubbles}}.dump() << "\n";
  return 0;
}
