#include "train/parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "train/parallel/simulated_pipeline.h"

namespace moelab {
namespace {

constexpr auto k1f1b = PipelineSchedule::one_forward_one_backward;
constexpr auto kInterleaved = PipelineSchedule::interleaved;
using Actions = std::vector<PipelineAction>;

struct Pipeline {
  PipelineSchedule kind;
  int64_t stages, chunks, micro_batches;

  std::vector<Actions> actions() const {
    std::vector<Actions> all;
    for (int64_t s = 0; s < stages; ++s)
      all.push_back(pipeline_actions(kind, stages, chunks, micro_batches, s));
    return all;
  }
};

std::vector<Pipeline> grid() {
  std::vector<Pipeline> all;
  for (int64_t P = 1; P <= 8; ++P) {
    for (const int64_t M : {1, 2, 3, 5, 8, 16}) all.push_back({k1f1b, P, 1, M});
    for (const int64_t v : {2, 3, 4})
      for (const int64_t groups : {1, 2, 4}) all.push_back({kInterleaved, P, v, groups * P});
  }
  return all;
}

std::string text(const Pipeline& p) {
  return std::string(enum_names(p.kind)[static_cast<size_t>(p.kind)]) + ", stages " +
         std::to_string(p.stages) + ", chunks " + std::to_string(p.chunks) + ", micro-batches " +
         std::to_string(p.micro_batches);
}

// Each micro-batch passes each chunk forward, later backward; and a chunk adds gradients in the order of one
// rank.
TEST(PipelineActions, TakeEachPassOnce) {
  for (const Pipeline& p : grid()) {
    for (const Actions& actions : p.actions()) {
      std::set<std::pair<int64_t, int64_t>> under_way;
      std::vector<int64_t> forward(p.chunks), backward(p.chunks);
      for (const PipelineAction& action : actions) {
        const std::pair pass{action.chunk, action.micro_batch};
        if (action.forward) {
          EXPECT_EQ(action.micro_batch, forward.at(action.chunk)++) << text(p);
          under_way.insert(pass);
        } else {
          EXPECT_EQ(action.micro_batch, backward.at(action.chunk)++) << text(p);
          EXPECT_EQ(under_way.erase(pass), 1U) << text(p);
        }
      }
      EXPECT_EQ(backward, std::vector<int64_t>(p.chunks, p.micro_batches)) << text(p);
      EXPECT_TRUE(under_way.empty()) << text(p);
    }
  }
}

TEST(PipelineActions, FinishInTheTimeThatTheirPapersSay) {
  for (const Pipeline& p : grid()) {
    for (const PassSeconds& seconds : {PassSeconds{1, 1}, PassSeconds{1, 2}, PassSeconds{3, 2}}) {
      const SimulatedPipeline played =
          simulate_pipeline(p.actions(), p.chunks, std::vector<PassSeconds>(p.stages, seconds));
      ASSERT_TRUE(played.finished) << text(p);
      const double bubble =
          static_cast<double>(p.stages - 1) / static_cast<double>(p.chunks * p.micro_batches + p.stages - 1);
      for (int64_t s = 0; s < p.stages; ++s) EXPECT_NEAR(played.bubble(s), bubble, 1e-12) << text(p);
    }
  }
}

// Stages of any speed: nobody waits for ever.
TEST(PipelineActions, FinishWhateverTheStagesTake) {
  for (const Pipeline& p : grid()) {
    std::vector<PassSeconds> seconds;
    for (int64_t s = 0; s < p.stages; ++s)
      seconds.push_back({1 + static_cast<double>(s * 7 % 5), 1 + static_cast<double>(s * 3 % 4)});
    EXPECT_TRUE(simulate_pipeline(p.actions(), p.chunks, seconds).finished) << text(p);
  }
}

TEST(PipelineActions, KeepAsFewPassesUnderWayAs1F1BPromises) {
  for (const Pipeline& p : grid()) {
    const SimulatedPipeline played =
        simulate_pipeline(p.actions(), p.chunks, std::vector<PassSeconds>(p.stages, {1, 2}));
    for (int64_t s = 0; s < p.stages; ++s) {
      const int64_t behind = p.stages - s - 1;
      const int64_t most = p.kind == k1f1b ? behind + 1 : 2 * behind + (p.chunks - 1) * p.stages + 1;
      EXPECT_EQ(played.most_under_way[s], std::min(most, p.chunks * p.micro_batches)) << text(p);
    }
  }
}

// Written out by hand: two stages, three micro-batches.
TEST(PipelineActions, TwoStagesAlternate) {
  const Actions first = {{true, 0, 0}, {true, 0, 1},  {false, 0, 0},
                         {true, 0, 2}, {false, 0, 1}, {false, 0, 2}};
  const Actions last = {{true, 0, 0},  {false, 0, 0}, {true, 0, 1},
                        {false, 0, 1}, {true, 0, 2},  {false, 0, 2}};
  EXPECT_EQ(pipeline_actions(k1f1b, 2, 1, 3, 0), first);
  EXPECT_EQ(pipeline_actions(k1f1b, 2, 1, 3, 1), last);
}

// Two stages that each want the other's message first.
TEST(SimulatedPipeline, SeesStagesThatWaitForEachOther) {
  std::vector<Actions> actions = {pipeline_actions(k1f1b, 2, 1, 2, 0), pipeline_actions(k1f1b, 2, 1, 2, 1)};
  const std::vector<PassSeconds> seconds(2, {1, 1});
  ASSERT_TRUE(simulate_pipeline(actions, 1, seconds).finished);
  std::swap(actions[0][0], actions[0][1]);  // the first stage begins with micro-batch 1, the last with 0
  EXPECT_TRUE(simulate_pipeline(actions, 1, seconds).finished == false);
}

// One micro-batch there and back, two under way together: a stage that has something to do does not wait.
TEST(SimulatedPipeline, MessagesAreUnderWayForATime) {
  const auto seconds = [](int64_t micro_batches) {
    return simulate_pipeline({pipeline_actions(k1f1b, 2, 1, micro_batches, 0),
                              pipeline_actions(k1f1b, 2, 1, micro_batches, 1)},
                             1, {{1, 2}, {3, 4}}, 0.5)
        .seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(1), 1 + 0.5 + 3 + 4 + 0.5 + 2);
  EXPECT_DOUBLE_EQ(seconds(2), 1 + 0.5 + 2 * (3 + 4) + 0.5 + 2);
}

// A stage keeps its bubble where another is slow: 3 micro-batches at 2 s + 2 s, and the other's first and
// last pass.
TEST(SimulatedPipeline, WaitsForTheSlowStage) {
  const std::vector<Actions> actions = {pipeline_actions(k1f1b, 2, 1, 3, 0),
                                        pipeline_actions(k1f1b, 2, 1, 3, 1)};
  const SimulatedPipeline played = simulate_pipeline(actions, 1, {{1, 1}, {2, 2}});
  EXPECT_DOUBLE_EQ(played.seconds, 1 + 3 * 4 + 1);
  EXPECT_DOUBLE_EQ(played.waited[0], 14 - 6);
  EXPECT_DOUBLE_EQ(played.waited[1], 2);
}

TEST(StageOf, PartsTheLayers) {
  for (const auto& [layers, stages, chunks] :
       {std::tuple{7, 2, 1}, {12, 4, 1}, {5, 5, 1}, {12, 2, 3}, {8, 4, 2}}) {
    ParallelSettings settings;
    settings.pipeline = stages;
    settings.chunks = chunks;
    std::vector<int64_t> had(layers);
    for (int64_t s = 0; s < stages; ++s) {
      const Stage stage = stage_of(settings, layers, s);
      EXPECT_EQ(stage.embedding, s == 0);
      EXPECT_EQ(stage.head, s + 1 == stages);
      for (int64_t i = 0; i < stage.blocks(); ++i) ++had.at(stage.layer(i));
      // chunk c of stage s is the (c * stages + s)-th run of layers
      for (int64_t i = 1; i < stage.blocks(); ++i) EXPECT_GT(stage.layer(i), stage.layer(i - 1));
    }
    EXPECT_EQ(had, std::vector<int64_t>(layers, 1)) << layers << " layers on " << stages << " x " << chunks;
  }
}

}  // namespace
}  // namespace moelab
