#pragma once
#include "train/predict/cost_model.h"
#include "train/predict/link.h"
#include "train/settings/settings.h"

namespace moelab {

// Where the time of a rank's step goes, in seconds.
struct StepTime {
  double computing = 0;
  double copying = 0;  // on a CPU: its cores copy messages, and do not compute meanwhile
  double waiting = 0;  // for other ranks, while nothing is computed

  double total() const { return computing + copying + waiting; }
};

// Predicted time of a step of one of the ranks of a resolved run, which has the speed of `costs` and
// exchanges over `link`. A message takes the link's latency and its bytes' time on the link, one message
// behind another; what the rank computes before it needs the message hides it. Steps follow each other:
// updated weights travel while the next one begins. One rank alone only computes.
StepTime step_time(const Settings& settings, const CostModel& costs, const Link& link);

// Bytes that a rank sends in a step, in closed form, without what ranks decide together.
double step_sent_bytes(const Settings& settings);

}  // namespace moelab
