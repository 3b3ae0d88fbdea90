#include "train/predict/rank_time.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "train/parallel/schedule.h"
#include "train/parallel/simulated_pipeline.h"
#include "train/predict/block_shape.h"
#include "train/predict/stage_run.h"
#include "train/settings/facts/data_parallel.h"

namespace moelab {
namespace {

// Micro-batches for each stage that are played; each further one adds the same.
constexpr int64_t kPlayed = 4;

RankLayout layout_of(const Settings& s) {
  const ParallelSettings& p = s.parallel;
  return {.data = data_ranks(s), .tensor = p.tensor, .pipeline = p.pipeline, .expert = p.expert};
}

// On a CPU, what loopback takes is what the cores take for messages over any link.
struct Ways {
  Ways(const Settings& s, const CostModel& costs, const Network& network)
      : layout(layout_of(s)), network(network) {
    if (costs.runs_on != DeviceChoice::cpu) return;
    loopback = find_link("loopback");
  }

  Road along(Axis axis) const {
    Road road = road_along(network, layout, axis);
    road.seconds_per_byte = std::max(road.seconds_per_byte, loopback.seconds_per_byte);
    road.latency = std::max(road.latency, loopback.latency);
    return road;
  }
  Roads roads() const {
    return {along(Axis::data), along(Axis::replicas), along(Axis::expert), along(Axis::tensor),
            along(Axis::all)};
  }
  double copy() const { return loopback.seconds_per_byte; }

  RankLayout layout;
  const Network& network;
  Link loopback = {};
};

double played(const ParallelSettings& p, int64_t micro_batches, const std::vector<PassSeconds>& passes,
              double message) {
  std::vector<std::vector<PipelineAction>> actions;
  for (int64_t stage = 0; stage < p.pipeline; ++stage)
    actions.push_back(pipeline_actions(p.schedule, p.pipeline, p.chunks, micro_batches, stage));
  return simulate_pipeline(actions, p.chunks, passes, message).seconds;
}

// A step's passes through all stages, whose chunks' times are given.
double pipeline_seconds(const Settings& s, const std::vector<PassSeconds>& passes, double message) {
  const ParallelSettings& p = s.parallel;
  const int64_t all = s.train.accumulation, few = std::min(all, kPlayed * p.pipeline);
  const double seconds = played(p, few, passes, message);
  if (few == all) return seconds;
  const double fewer = played(p, few - p.pipeline, passes, message);
  return seconds + static_cast<double>(all - few) * (seconds - fewer) / static_cast<double>(p.pipeline);
}

struct PlayedStage {
  StepTime step;
  PassSeconds pass{};

  double in_passes(const Settings& s) const {
    return static_cast<double>(s.train.accumulation) * (pass.forward + pass.backward);
  }
};

PlayedStage play(const Settings& s, int64_t stage, const CostModel& costs, const Ways& ways) {
  StageRun run(s, stage, costs, ways.roads(), ways.copy());
  run.step();
  const StepTime step = run.step();
  return {step, run.pass()};
}

// Stages between the first and the last with equally many layers are alike.
std::vector<PlayedStage> play_stages(const Settings& s, const CostModel& costs, const Ways& ways) {
  std::vector<PlayedStage> stages;
  std::map<int64_t, size_t> alike;  // blocks -> stage
  for (int64_t stage = 0; stage < s.parallel.pipeline; ++stage) {
    const bool inner = stage > 0 && stage + 1 < s.parallel.pipeline;
    const int64_t blocks = stage_of(s.parallel, s.model.layers, stage).blocks();
    if (inner && alike.contains(blocks)) {
      stages.push_back(stages[alike[blocks]]);
      continue;
    }
    if (inner) alike[blocks] = stages.size();
    stages.push_back(play(s, stage, costs, ways));
  }
  return stages;
}

// The slowest stage's step, in which its passes take turns with those of the others. What a stage does after
// its passes, it does while others still have some, except the one that takes the longest for it.
StepTime pipeline_time(const Settings& s, const CostModel& costs, const Ways& ways) {
  const std::vector<PlayedStage> stages = play_stages(s, costs, ways);
  std::vector<PassSeconds> passes;
  double after = 0;
  for (const PlayedStage& stage : stages) {
    const auto chunks = static_cast<double>(s.parallel.chunks);
    passes.push_back({stage.pass.forward / chunks, stage.pass.backward / chunks});
    after = std::max(after, stage.step.total() - stage.in_passes(s));
  }
  const Road road = ways.along(Axis::pipeline);
  const double handed = pass_exchanges(s, rank_share(s, 0)).handed.bytes;
  const double seconds = after + pipeline_seconds(s, passes, road.latency + handed * road.seconds_per_byte);
  StepTime slowest =
      std::max_element(stages.begin(), stages.end(), [&](const PlayedStage& a, const PlayedStage& b) {
        return a.step.total() < b.step.total();
      })->step;
  const double stalled = std::max(0.0, seconds - slowest.total());
  slowest.stages = stalled;
  slowest.waiting += stalled;
  return slowest;
}

}  // namespace

StepTime step_time(const Settings& settings, const CostModel& costs, const Network& network) {
  const Ways ways(settings, costs, network);
  if (ways.layout.ranks() == 1) return {.computing = costs.step_seconds(step_cost(settings))};
  return settings.parallel.pipeline > 1 ? pipeline_time(settings, costs, ways)
                                        : play(settings, 0, costs, ways).step;
}

double step_sent_bytes(const Settings& settings) {
  const bool alone = settings.parallel.pipeline == 1;  // the first stage has the head, too
  const Settings share = rank_share(settings, 0);
  const BlockShape shape(share);
  const auto layers = static_cast<double>(share.model.layers),
             passes = static_cast<double>(share.train.accumulation),
             matrix = static_cast<double>(share.model.vocab * share.model.d_model);
  const bool tied = share.model.tie_embeddings;
  // gathered for both ends, even if they are one weight
  const double weights = matrix * (alone && !tied ? 2 : 1), ends = matrix * (alone ? 2 : 1);
  const double experts = settings.parallel.expert > 1 ? layers * shape.expert_parameters : 0,
               others = layers * shape.parameters() - experts;
  const double visits = 1 + gathers_in_backward(share), sums = static_cast<double>(gradient_exchanges(share));
  const SentBytes all = sent_bytes(share, {others, weights}), blocks = sent_bytes(share, {others, 0}),
                  edges = sent_bytes(share, {0, ends}), own = sent_bytes_of_experts(share, experts);
  const PassExchanges e = pass_exchanges(settings, share);
  const Exchange in_block = e.sums_forward + e.sums_backward + e.rows_forward + e.rows_backward;
  const double within = layers * in_block.bytes + (alone ? 2 : 1) * e.sum.bytes + e.handed.bytes;
  return sums * (all.gradients + own.gradients) + all.updates + own.updates +
         passes * (visits * (blocks.gathers + own.gathers) + edges.gathers + within);
}

}  // namespace moelab
