#include "train/parallel/simulated_pipeline.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace moelab {
namespace {

// What one pass gives the next: where the pass was among the chunks of all stages, in the model's order.
struct Message {
  bool forward;
  int64_t from, micro_batch;
  friend auto operator<=>(const Message&, const Message&) = default;
};

struct Playing {
  Playing(const std::vector<std::vector<PipelineAction>>& actions, int64_t chunks,
          const std::vector<PassSeconds>& times)
      : actions(actions), times(times), chunks_of_all(chunks * static_cast<int64_t>(times.size())) {
    stages.resize(times.size());
  }

  struct State {
    size_t next = 0;        // of the stage's actions
    bool computed = false;  // the next action's pass; it waits to send
    double now = 0, busy = 0;
    int64_t under_way = 0, most_under_way = 0;
    std::optional<Message> last[2];  // sent: of backward and of forward passes
  };

  int64_t place(size_t stage, const PipelineAction& action) const {
    return action.chunk * static_cast<int64_t>(stages.size()) + static_cast<int64_t>(stage);
  }

  // Whether the pass could be computed: what it needs was sent.
  bool compute(size_t stage, const PipelineAction& action) {
    State& s = stages[stage];
    const int64_t at = place(stage, action), before = action.forward ? at - 1 : at + 1;
    if (before >= 0 && before < chunks_of_all) {
      const Message needed{action.forward, before, action.micro_batch};
      const auto found = sent.find(needed);
      if (found == sent.end()) return false;
      s.now = std::max(s.now, found->second);
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
      std::optional<Message>& last = s.last[action.forward ? 1 : 0];
      if (last) {
        const auto found = received.find(*last);
        if (found == received.end()) return false;
        s.now = std::max(s.now, found->second);
      }
      last = Message{action.forward, at, action.micro_batch};
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
  int64_t chunks_of_all;
  std::vector<State> stages;
  std::map<Message, double> sent, received;  // when
};

}  // namespace

SimulatedPipeline simulate_pipeline(const std::vector<std::vector<PipelineAction>>& actions, int64_t chunks,
                                    const std::vector<PassSeconds>& stages) {
  Playing playing(actions, chunks, stages);
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
