#include "train/predict/rank_time.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "train/predict/block_shape.h"
#include "train/settings/facts/data_parallel.h"

namespace moelab {
namespace {

StepTime operator-(const StepTime& a, const StepTime& b) {
  return {a.computing - b.computing, a.copying - b.copying, a.waiting - b.waiting};
}
StepTime operator+(const StepTime& a, const StepTime& b) {
  return {a.computing + b.computing, a.copying + b.copying, a.waiting + b.waiting};
}
StepTime operator*(double count, const StepTime& a) {
  return {count * a.computing, count * a.copying, count * a.waiting};
}

// The time of one rank and of its link, which carries one message behind another.
class Clock {
 public:
  Clock(const Link& link, double copy_seconds_per_byte) : link_(link), copy_(copy_seconds_per_byte) {}

  const StepTime& spent() const { return spent_; }
  void compute(double seconds) {
    spent_.computing += seconds;
    spent_.copying += owed_;
    owed_ = 0;
  }
  // Starts an exchange with the other ranks, and returns when it will have ended.
  double send(double bytes) {
    if (bytes == 0) return 0;
    free_ = std::max(free_, spent_.total()) + bytes * link_.seconds_per_byte;
    owed_ += bytes * copy_;
    return free_ + link_.latency;
  }
  // While it waits, a rank's core copies.
  void wait(double until) {
    const double idle = std::max(0.0, until - spent_.total());
    spent_.waiting += idle;
    owed_ = std::max(0.0, owed_ - idle);
  }
  // All ranks say a few words to each other.
  void agree() { wait(spent_.total() + link_.latency); }

 private:
  const Link& link_;
  double copy_, owed_ = 0;  // seconds of copying that are still to be done
  double free_ = 0;         // when the link is
  StepTime spent_;
};

// What a step does with one block, or with embedding or head.
struct StepPart {
  double forward = 0, backward = 0, update = 0;  // seconds; the passes, of one micro-batch
  SentBytes sent;
  double messages = 1;  // weights, each with a message of its own
};

struct ModelParts {
  StepPart block, embedding, head;
};

// Weights of a block: its norms, attention's two, the router, and two for each kind of expert.
double weights_of_block(const ModelSettings& m) {
  return 4 + (m.qk_norm == QkNorm::none ? 0 : 2) + (m.dense() ? 2 : 3) + (m.shared_experts > 0 ? 2 : 0);
}

ModelParts model_parts(const Settings& s, const CostModel& costs) {
  const BlockShape shape(s);
  const StepParts parts = step_parts(s);
  const double layers = static_cast<double>(s.model.layers),
               passes = static_cast<double>(s.train.accumulation);
  const double blocks = costs.step_seconds(parts.blocks) / (layers * passes);
  const double outside = static_cast<double>(s.model.vocab * s.model.d_model);
  const double update = costs.step_seconds(parts.update) /
                        (layers * shape.parameters() + (s.model.tie_embeddings ? 1 : 2) * outside);
  ModelParts p;
  p.block = {.forward = parts.forward_share * blocks,
             .backward = (1 - parts.forward_share) * blocks,
             .update = update * shape.parameters(),
             .sent = sent_bytes(s, {shape.parameters(), 0}),
             .messages = weights_of_block(s.model)};
  p.embedding = {.update = update * outside, .sent = sent_bytes(s, {0, outside})};
  p.head = p.embedding;
  p.head.forward = costs.step_seconds(parts.head) / passes;
  if (s.model.tie_embeddings) {  // one weight: stepped and sent as the embedding, gathered for both
    p.head.update = 0;
    p.head.sent = {.gathers = p.embedding.sent.gathers};
  }
  return p;
}

// A training on one of the ranks, step after step, as train/step and train/placement do it.
class RankRun {
 public:
  RankRun(const Settings& s, const CostModel& costs, const Link& link, double copy)
      : settings_(s), parts_(model_parts(s, costs)), clock_(link, copy), latency_(link.latency) {
    arrives_.resize(static_cast<size_t>(s.model.layers) + 2);
    // as GradientStore: twice the largest gradient may be under way
    const double expert = BlockShape(s).expert_parameters * 2 / 3;
    const double largest = std::max(expert, static_cast<double>(s.model.vocab * s.model.d_model));
    most_under_way_ = 2 * sent_bytes(s, {largest, 0}).gradients;
  }

  // Micro-batches between the first two and the last pass alike.
  StepTime step() {
    const StepTime before = clock_.spent();
    const int64_t passes = settings_.train.accumulation, exchanges = gradient_exchanges(settings_);
    const int64_t few = std::min<int64_t>(passes, 3);
    StepTime second, third;
    for (int64_t i = 0; i < few; ++i) {
      (i == 1 ? second : third) = clock_.spent();
      forward();
      backward(/*adds=*/exchanges == passes || i == few - 1);
      clock_.agree();
    }
    const StepTime repeated =
        passes > few ? static_cast<double>(passes - few) * (third - second) : StepTime{};
    if (!settings_.optim.in_backward) update();
    return clock_.spent() - before + repeated;
  }

 private:
  int64_t layers() const { return settings_.model.layers; }

  // With ZeRO-3 a block's weights are gathered while the block before it runs; else they may still be on
  // their way from the update before.
  void forward() {
    clock_.wait(std::max(arrives_.front(), clock_.send(parts_.embedding.sent.gathers)));
    double next = clock_.send(parts_.block.sent.gathers);
    for (int64_t layer = 0; layer < layers(); ++layer) {
      clock_.wait(std::max(arrives_[static_cast<size_t>(layer) + 1], next));
      const bool last = layer + 1 == layers();
      next = clock_.send((last ? parts_.head : parts_.block).sent.gathers);
      clock_.compute(parts_.block.forward);
    }
    clock_.wait(std::max(arrives_.back(), next));
    clock_.compute(parts_.head.forward);
  }

  void backward(bool adds) {
    if (adds) add_gradients(parts_.head);
    const double again = gathers_in_backward(settings_) * parts_.block.sent.gathers;
    double next = clock_.send(again);
    for (int64_t layer = layers(); layer-- > 0;) {
      clock_.wait(next);
      if (layer > 0) next = clock_.send(again);
      clock_.compute(parts_.block.backward);
      if (adds) add_gradients(parts_.block);
    }
    if (adds) add_gradients(parts_.embedding);
  }

  void add_gradients(const StepPart& part) {
    const double bytes = part.sent.gradients;
    while (!under_way_.empty() && bytes_under_way_ + bytes > most_under_way_) finish_oldest();
    under_way_.push_back({clock_.send(bytes), bytes});
    bytes_under_way_ += bytes;
    if (!settings_.optim.in_backward) return;
    finish_all();
    // each weight's gradient is waited for before the next one comes, and its norm is agreed on
    clock_.wait(clock_.spent().total() + (2 * part.messages - 1) * latency_);
    step(part);
  }

  void finish_oldest() {
    clock_.wait(under_way_.front().first);
    bytes_under_way_ -= under_way_.front().second;
    under_way_.pop_front();
  }
  void finish_all() {
    while (!under_way_.empty()) finish_oldest();
  }

  // Returns when the stepped weights will have arrived.
  double step(const StepPart& part) {
    clock_.compute(part.update);
    const double arrives = clock_.send(part.sent.updates);
    if (!waits_for_updates(settings_)) return arrives;
    clock_.wait(arrives);
    // each weight is waited for before the next one is stepped
    if (part.sent.updates > 0) clock_.wait(clock_.spent().total() + (part.messages - 1) * latency_);
    return 0;
  }

  // The ranks have room, and agree on the norm.
  void update() {
    finish_all();
    clock_.agree();
    clock_.agree();
    arrives_.front() = step(parts_.embedding);
    for (int64_t layer = 0; layer < layers(); ++layer)
      arrives_[static_cast<size_t>(layer) + 1] = step(parts_.block);
    arrives_.back() = step(parts_.head);
  }

  const Settings& settings_;
  ModelParts parts_;
  Clock clock_;
  double latency_;
  std::vector<double> arrives_;                      // of updated embedding, blocks and head
  std::deque<std::pair<double, double>> under_way_;  // gradients: when they have arrived, and bytes
  double bytes_under_way_ = 0, most_under_way_ = 0;
};

}  // namespace

StepTime step_time(const Settings& settings, const CostModel& costs, const Link& link) {
  if (data_ranks(settings) == 1) return {.computing = costs.step_seconds(step_cost(settings))};
  double copy = 0;
  Link between = link;
  if (costs.runs_on == DeviceChoice::cpu) {
    // what loopback takes is what the cores take for messages over any link
    const Link loopback = find_link("loopback");
    copy = loopback.seconds_per_byte;
    between.seconds_per_byte = std::max(link.seconds_per_byte, copy);
    between.latency = std::max(link.latency, loopback.latency);
  }
  RankRun run(settings, costs, between, copy);
  run.step();
  return run.step();
}

double step_sent_bytes(const Settings& settings) {
  const BlockShape shape(settings);
  const WeightCounts weights = weight_counts(settings, shape);
  const double matrix = static_cast<double>(settings.model.vocab * settings.model.d_model);
  const SentBytes all = sent_bytes(settings, weights), blocks = sent_bytes(settings, {weights.in_blocks, 0}),
                  ends = sent_bytes(settings, {0, 2 * matrix});
  const auto passes = static_cast<double>(settings.train.accumulation);
  const double visits = 1 + gathers_in_backward(settings);
  return static_cast<double>(gradient_exchanges(settings)) * all.gradients + all.updates +
         passes * (visits * blocks.gathers + ends.gathers);
}

}  // namespace moelab
