#pragma once
#include "train/predict/cost_model.h"
#include "train/predict/network.h"
#include "train/settings/settings.h"

namespace moelab {

// Where the time of a rank's step goes, in seconds.
struct StepTime {
  double computing = 0;
  double copying = 0;  // on a CPU: its cores copy messages, and do not compute meanwhile
  double waiting = 0;  // for other ranks, while nothing is computed; of that
  double sums = 0;     // … for sums over ranks that share each matrix,
  double rows = 0;     // … for rows between dispatch and experts,
  double stages = 0;   // … and for other stages of the pipeline

  double total() const { return computing + copying + waiting; }
};

// Predicted time of a step of the slowest rank of a resolved run, each of which has the speed of `costs`,
// over `network`. A message takes its link's latency and its bytes' time on the link, one message behind
// another on each link.
// - Gradients, gathered and updated weights: what the rank computes before it needs the message hides it.
//   Updated weights travel while the next step begins.
// - Sums over ranks that share each matrix, and rows on their way to experts: nothing hides them. An expert's
//   load is the mean of all.
// - Stages of a pipeline take turns as their schedule has it, played with the times of their passes.
// One rank alone only computes.
StepTime step_time(const Settings& settings, const CostModel& costs, const Network& network);

// Bytes that the first rank sends in a step, in closed form, without what ranks decide together and without
// the router's gradients (parallel.tensor).
double step_sent_bytes(const Settings& settings);

}  // namespace moelab
