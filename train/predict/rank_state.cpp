#include "train/predict/rank_state.h"

namespace moelab {

std::array<RankState, 4> rank_states(const DryRun& run, int64_t ranks) {
  const auto held = [&](Kind kind) { return run.by_kind_at_peak[static_cast<size_t>(kind)]; };
  const auto share = [&](int64_t bytes, bool sharded) {
    return sharded ? (bytes + ranks - 1) / ranks : bytes;
  };
  const int64_t weights = held(Kind::parameters) + held(Kind::parameter_experts);
  const int64_t optimizer = held(Kind::optimizer) + held(Kind::master);
  const int64_t gradients = held(Kind::gradients);
  const int64_t rest = run.peak - weights - gradients - optimizer;
  std::array<RankState, 4> states;
  for (int stage = 0; stage < 4; ++stage) {
    RankState& state = states[static_cast<size_t>(stage)];
    state = {stage, share(weights, stage >= 3), share(gradients, stage >= 2), share(optimizer, stage >= 1),
             0};
    state.peak = rest + state.weights + state.gradients + state.optimizer;
  }
  return states;
}

}  // namespace moelab
