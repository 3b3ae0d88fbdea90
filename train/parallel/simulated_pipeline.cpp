#include "train/parallel/simulated_pipeline.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace moelab {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Playing {
  Playing(const std::vector<std::vector<PipelineAction>>& actions, int64_t chunks,
          const std::vector<PassSeconds>& times, double message)
      : actions(actions),
        times(times),
        message(message),
        chunks_of_all(chunks * static_cast<int64_t>(times.size())),
        micro_batches(static_cast<int64_t>(actions.front().size()) / (2 * chunks)) {
    stages.resize(times.size());
    sent.assign(static_cast<size_t>(2 * chunks_of_all * micro_batches), kNever);
    received = sent;
  }

  struct State {
    size_t next = 0;        // of the stage's actions
    bool computed = false;  // the next action's pass; it waits to send
    double now = 0, busy = 0;
    int64_t under_way = 0, most_under_way = 0;
    std::optional<size_t> last[2];  // message sent: of backward and of forward passes
  };

  int64_t place(size_t stage, const PipelineAction& action) const {
    return action.chunk * static_cast<int64_t>(stages.size()) + static_cast<int64_t>(stage);
  }

  // What one pass gives the next, by where the pass was among the chunks of all stages, in the model's order.
  size_t message_of(bool forward, int64_t from, int64_t micro_batch) const {
    return static_cast<size_t>(((forward ? 1 : 0) * chunks_of_all + from) * micro_batches + micro_batch);
  }

  // Whether the pass could be computed: what it needs was sent.
  bool compute(size_t stage, const PipelineAction& action) {
    State& s = stages[stage];
    const int64_t at = place(stage, action), before = action.forward ? at - 1 : at + 1;
    if (before >= 0 && before < chunks_of_all) {
      const size_t needed = message_of(action.forward, before, action.micro_batch);
      if (sent[needed] == kNever) return false;
      s.now = std::max(s.now, sent[needed] + message);
      received[needed] = s.now;
    }
    const double takes = action.forward ? times[stage].forward : times[stage].backward;
    s.now += takes;
    s.busy += takes;
    s.under_way += action.forward ? 1 : -1;
    s.most_under_way = std::max(s.most_under_way, s.under_way);
    return s.computed = true;
  }

  // Whether what the pass gave could be sent: the last message in its direction was received.
  bool send(size_t stage, const PipelineAction& action) {
    State& s = stages[stage];
    const int64_t at = place(stage, action);
    if (action.forward ? at + 1 < chunks_of_all : at > 0) {
      std::optional<size_t>& last = s.last[action.forward ? 1 : 0];
      if (last) {
        if (received[*last] == kNever) return false;
        s.now = std::max(s.now, received[*last]);
      }
      last = message_of(action.forward, at, action.micro_batch);
      sent[*last] = s.now;
    }
    s.computed = false;
    return true;
  }

  // Whether the stage came any further.
  bool go_on(size_t stage) {
    State& s = stages[stage];
    bool moved = false;
    while (s.next < actions[stage].size()) {
      const PipelineAction& action = actions[stage][s.next];
      if (!s.computed) {
        if (!compute(stage, action)) break;
        moved = true;
      }
      if (!send(stage, action)) break;
      moved = true;
      ++s.next;
    }
    return moved;
  }

  const std::vector<std::vector<PipelineAction>>& actions;
  const std::vector<PassSeconds>& times;
  double message;
  int64_t chunks_of_all, micro_batches;
  std::vector<State> stages;
  std::vector<double> sent, received;  // when, by message_of()
};

}  // namespace

SimulatedPipeline simulate_pipeline(const std::vector<std::vector<PipelineAction>>& actions, int64_t chunks,
                                    const std::vector<PassSeconds>& stages, double message) {
  Playing playing(actions, chunks, stages, message);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < stages.size(); ++stage) moved = playing.go_on(stage) || moved;
  }
  SimulatedPipeline result{.finished = true};
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const Playing::State& s = playing.stages[stage];
    result.finished = result.finished && s.next == actions[stage].size();
    result.seconds = std::max(result.seconds, s.now);
    result.most_under_way.push_back(s.most_under_way);
  }
  for (const Playing::State& s : playing.stages) result.waited.push_back(result.seconds - s.busy);
  return result;
}

}  // namespace moelab
