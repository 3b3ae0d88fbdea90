#pragma once
#include <deque>
#include <utility>
#include <vector>

#include "train/parallel/simulated_pipeline.h"
#include "train/predict/cost_model.h"
#include "train/predict/network.h"
#include "train/predict/rank_share.h"
#include "train/predict/rank_time.h"
#include "train/settings/facts/data_parallel.h"
#include "train/settings/settings.h"

namespace moelab {

StepTime operator+(const StepTime& a, const StepTime& b);
StepTime operator-(const StepTime& a, const StepTime& b);
StepTime operator*(double count, const StepTime& a);

// The time of one rank and of its links, each of which carries one message behind another: one to ranks of
// its machine, one to other machines.
class Clock {
 public:
  explicit Clock(double copy_seconds_per_byte) : copy_(copy_seconds_per_byte) {}

  const StepTime& spent() const { return spent_; }
  void compute(double seconds);
  // Starts a message to other ranks, and returns when it will have ended.
  double send(const Road& road, double bytes);
  // While it waits, a rank's core copies.
  void wait(double until);
  // One message after another, of together so many bytes; returns the seconds that it waited.
  double exchange(const Road& road, const Exchange& messages);
  void note(double StepTime::*of, double seconds) { spent_.*of += seconds; }

 private:
  double copy_, owed_ = 0;   // seconds of copying that are still to be done
  double free_[2] = {0, 0};  // when the link in the machine is, and that to others
  StepTime spent_;
};

// What ranks send along each axis.
struct Roads {
  Road data, replicas, expert, tensor, all;
};

// A step's work on one block, on the embedding or on the head.
struct StepPart {
  double forward = 0, backward = 0, update = 0;  // seconds; the passes, of one micro-batch
  SentBytes sent = {}, sent_of_experts = {};     // to the data-parallel ranks, to those with the same experts
  double messages = 1;                           // weights, each with a message of its own
};

// The training of one rank of a stage, step after step, as train/step and train/placement do it, as if other
// stages were always ready.
class StageRun {
 public:
  StageRun(const Settings& settings, int64_t stage, const CostModel& costs, const Roads& roads, double copy);

  StepTime step();
  // Of the last micro-batch, through all layers of the stage.
  PassSeconds pass() const { return pass_; }

 private:
  int64_t layers() const { return share_.model.layers; }
  void forward();
  void backward(bool adds);
  double gather(const StepPart& part, double times = 1);
  double send(const StepPart& part, double SentBytes::*what, double times = 1);
  void exchange_in_block(const Exchange& sums, const Exchange& rows);
  void sum();
  void agree() { clock_.wait(clock_.spent().total() + roads_.all.latency); }
  void add_gradients(const StepPart& part);
  void finish_oldest();
  void finish_all();
  double step(const StepPart& part);
  void update();

  Settings share_;
  bool first_, last_;  // of the stages: it has the embedding, the head
  StepPart block_, embedding_, head_;
  PassExchanges exchanges_;
  Roads roads_;
  Clock clock_;
  PassSeconds pass_{};
  std::vector<double> arrives_;                      // of updated embedding, blocks and head
  std::deque<std::pair<double, double>> under_way_;  // gradients: when they have arrived, and bytes
  double bytes_under_way_ = 0, most_under_way_ = 0;
};

}  // namespace moelab
