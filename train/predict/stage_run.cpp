#include "train/predict/stage_run.h"

#include <algorithm>

#include "train/predict/block_shape.h"

namespace moelab {
namespace {

// Weights of a block: its norms, attention's two, the router, and two for each kind of expert.
double weights_of_block(const ModelSettings& m) {
  return 4 + (m.qk_norm == QkNorm::none ? 0 : 2) + (m.dense() ? 2 : 3) + (m.shared_experts > 0 ? 2 : 0);
}

}  // namespace

StepTime operator-(const StepTime& a, const StepTime& b) { return a + -1.0 * b; }
StepTime operator+(const StepTime& a, const StepTime& b) {
  return {a.computing + b.computing, a.copying + b.copying, a.waiting + b.waiting,
          a.sums + b.sums,           a.rows + b.rows,       a.stages + b.stages};
}
StepTime operator*(double count, const StepTime& a) {
  return {count * a.computing, count * a.copying, count * a.waiting,
          count * a.sums,      count * a.rows,    count * a.stages};
}

void Clock::compute(double seconds) {
  spent_.computing += seconds;
  spent_.copying += owed_;
  owed_ = 0;
}

double Clock::send(const Road& road, double bytes) {
  if (bytes == 0) return 0;
  double& free = free_[road.leaves ? 1 : 0];
  free = std::max(free, spent_.total()) + bytes * road.seconds_per_byte;
  owed_ += bytes * copy_;
  return free + road.latency;
}

void Clock::wait(double until) {
  const double idle = std::max(0.0, until - spent_.total());
  spent_.waiting += idle;
  owed_ = std::max(0.0, owed_ - idle);
}

double Clock::exchange(const Road& road, const Exchange& messages) {
  if (messages.bytes == 0) return 0;
  const double before = spent_.waiting;
  wait(send(road, messages.bytes) + (messages.messages - 1) * road.latency);
  return spent_.waiting - before;
}

StageRun::StageRun(const Settings& settings, int64_t stage, const CostModel& costs, const Roads& roads,
                   double copy)
    : share_(rank_share(settings, stage)),
      first_(stage == 0),
      last_(stage + 1 == settings.parallel.pipeline),
      exchanges_(pass_exchanges(settings, share_)),
      roads_(roads),
      clock_(copy) {
  const Settings& s = share_;
  const BlockShape shape(s);
  const StepParts parts = step_parts(s);
  const auto layers = static_cast<double>(s.model.layers), passes = static_cast<double>(s.train.accumulation);
  const double blocks = costs.step_seconds(parts.blocks) / (layers * passes);
  const auto outside = static_cast<double>(s.model.vocab * s.model.d_model);
  const double update = costs.step_seconds(parts.update) /
                        (layers * shape.parameters() + (s.model.tie_embeddings ? 1 : 2) * outside);
  const double exchanged = s.parallel.expert > 1 ? shape.expert_parameters : 0;
  block_ = {.forward = parts.forward_share * blocks,
            .backward = (1 - parts.forward_share) * blocks,
            .update = update * shape.parameters(),
            .sent = sent_bytes(s, {shape.parameters() - exchanged, 0}),
            .sent_of_experts = sent_bytes_of_experts(s, exchanged),
            .messages = weights_of_block(s.model)};
  embedding_ = {.update = update * outside, .sent = sent_bytes(s, {0, outside})};
  head_ = embedding_;
  head_.forward = costs.step_seconds(parts.head) / passes;
  if (s.model.tie_embeddings && first_) {  // one weight: stepped and sent as the embedding, gathered for both
    head_.update = 0;
    head_.sent = {.gathers = embedding_.sent.gathers};
  }
  if (!first_) embedding_ = {};
  if (!last_) head_ = {};
  arrives_.resize(static_cast<size_t>(s.model.layers) + 2);
  // as GradientStore: twice the largest gradient may be under way
  const double expert = shape.expert_parameters * 2 / 3;
  most_under_way_ = 2 * sent_bytes(s, {std::max(expert, outside), 0}).gradients;
}

// Micro-batches between the first two and the last pass alike.
StepTime StageRun::step() {
  const StepTime before = clock_.spent();
  const int64_t passes = share_.train.accumulation, exchanges = gradient_exchanges(share_);
  const int64_t few = std::min<int64_t>(passes, 3);
  StepTime second, third;
  for (int64_t i = 0; i < few; ++i) {
    (i == 1 ? second : third) = clock_.spent();
    const double begins = clock_.spent().total();
    forward();
    pass_.forward = clock_.spent().total() - begins;
    backward(/*adds=*/exchanges == passes || i == few - 1);
    pass_.backward = clock_.spent().total() - begins - pass_.forward;
    agree();
  }
  const StepTime repeated = passes > few ? static_cast<double>(passes - few) * (third - second) : StepTime{};
  if (!share_.optim.in_backward) update();
  return clock_.spent() - before + repeated;
}

// The later of the two arrives so; 0: nothing is sent.
double StageRun::send(const StepPart& part, double SentBytes::*what, double times) {
  const double shared = clock_.send(roads_.data, times * part.sent.*what);
  return std::max(shared, clock_.send(roads_.replicas, times * part.sent_of_experts.*what));
}
double StageRun::gather(const StepPart& part, double times) { return send(part, &SentBytes::gathers, times); }

void StageRun::sum() { clock_.note(&StepTime::sums, clock_.exchange(roads_.tensor, exchanges_.sum)); }

void StageRun::exchange_in_block(const Exchange& sums, const Exchange& rows) {
  clock_.note(&StepTime::sums, clock_.exchange(roads_.tensor, sums));
  clock_.note(&StepTime::rows, clock_.exchange(roads_.expert, rows));
}

// With ZeRO-3 a block's weights are gathered while the block before it runs; else they may still be on their
// way from the update before.
void StageRun::forward() {
  clock_.wait(std::max(arrives_.front(), gather(embedding_)));
  if (first_) sum();
  double next = gather(block_);
  for (int64_t layer = 0; layer < layers(); ++layer) {
    clock_.wait(std::max(arrives_[static_cast<size_t>(layer) + 1], next));
    const bool last = layer + 1 == layers();
    next = gather(last ? head_ : block_);
    clock_.compute(block_.forward);
    exchange_in_block(exchanges_.sums_forward, exchanges_.rows_forward);
  }
  clock_.wait(std::max(arrives_.back(), next));
  clock_.compute(head_.forward);
  if (last_) sum();
}

void StageRun::backward(bool adds) {
  if (adds) add_gradients(head_);
  const double again = gathers_in_backward(share_);
  double next = gather(block_, again);
  for (int64_t layer = layers(); layer-- > 0;) {
    clock_.wait(next);
    if (layer > 0) next = gather(block_, again);
    clock_.compute(block_.backward);
    exchange_in_block(exchanges_.sums_backward, exchanges_.rows_backward);
    if (adds) add_gradients(block_);
  }
  if (adds) add_gradients(embedding_);
}

void StageRun::add_gradients(const StepPart& part) {
  const double bytes = part.sent.gradients + part.sent_of_experts.gradients;
  while (!under_way_.empty() && bytes_under_way_ + bytes > most_under_way_) finish_oldest();
  under_way_.push_back({send(part, &SentBytes::gradients), bytes});
  bytes_under_way_ += bytes;
  if (!share_.optim.in_backward) return;
  finish_all();
  // each weight's gradient is waited for before the next one comes, and its norm is agreed on
  clock_.wait(clock_.spent().total() + (2 * part.messages - 1) * roads_.all.latency);
  step(part);
}

void StageRun::finish_oldest() {
  clock_.wait(under_way_.front().first);
  bytes_under_way_ -= under_way_.front().second;
  under_way_.pop_front();
}
void StageRun::finish_all() {
  while (!under_way_.empty()) finish_oldest();
}

// Returns when the stepped weights will have arrived.
double StageRun::step(const StepPart& part) {
  clock_.compute(part.update);
  const double arrives = send(part, &SentBytes::updates);
  if (!waits_for_updates(share_)) return arrives;
  clock_.wait(arrives);
  // each weight is waited for before the next one is stepped
  if (part.sent.updates > 0) clock_.wait(clock_.spent().total() + (part.messages - 1) * roads_.data.latency);
  return 0;
}

// The ranks have room, and agree on the norm.
void StageRun::update() {
  finish_all();
  agree();
  agree();
  arrives_.front() = step(embedding_);
  for (int64_t layer = 0; layer < layers(); ++layer) arrives_[static_cast<size_t>(layer) + 1] = step(block_);
  arrives_.back() = step(head_);
}

}  // namespace moelab
