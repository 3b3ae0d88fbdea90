#include "train/step/stage_passes.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "kernels/memory/ledger.h"
#include "train/step/held_out_mean.h"

namespace moelab {
namespace {

using Clock = std::chrono::steady_clock;

// Has the backward pass that reaches `h` end in the node returned.
std::shared_ptr<StageInput> end_here(Hidden& h, bool losses) {
  auto node = std::shared_ptr<StageInput>(new StageInput(), torch::autograd::deleteNode);
  torch::autograd::set_history(h.x_BSD, node);
  if (losses) {
    torch::autograd::set_history(h.balance_loss, node);
    torch::autograd::set_history(h.z_loss, node);
  }
  return node;
}

// Where the gradients of what is handed on go.
torch::autograd::edge_list edges_of(const Hidden& h, bool losses) {
  const auto edge = [](const at::Tensor& part) { return torch::autograd::impl::gradient_edge(part); };
  if (!losses) return {edge(h.x_BSD)};
  return {edge(h.x_BSD), edge(h.balance_loss), edge(h.z_loss)};
}

}  // namespace

Trainer::StagePasses::StagePasses(Trainer& trainer)
    : trainer_(trainer), stage_(trainer.model_.stage()), links_(trainer.ranks_, trainer.model_) {}

// Of the step, of the stage's micro-batch `number`.
int64_t Trainer::StagePasses::micro_batch(int64_t number) const {
  return number * trainer_.ranks_.size() + trainer_.ranks_.rank();
}

void Trainer::StagePasses::run(StepForm& form) {
  const ParallelSettings& settings = trainer_.settings_.parallel;
  const std::vector<PipelineAction> actions =
      pipeline_actions(settings.schedule, settings.pipeline, settings.chunks,
                       trainer_.settings_.train.accumulation, trainer_.ranks_.stages->rank());
  expect(actions.front());
  for (size_t i = 0; i < actions.size(); ++i) {
    if (i + 1 < actions.size()) expect(actions[i + 1]);
    actions[i].forward ? forward(form, actions[i]) : backward(actions[i]);
  }
  links_.settle();
  const Clock::time_point start = Clock::now();
  trainer_.add_tied_gradients();
  end_ += Clock::now() - start;
}

// Has what a pass begins with come during the pass before.
void Trainer::StagePasses::expect(const PipelineAction& action) {
  const TrainSettings& train = trainer_.settings_.train;
  const std::vector<int64_t> shape_BS = {train.micro_batch, train.row()};
  if (action.forward && !first(action.chunk)) links_.expect(shape_BS);
  if (!action.forward && !last(action.chunk)) links_.expect_gradients(shape_BS);
}

std::vector<MicroBatchReport> Trainer::StagePasses::of_last(std::vector<MicroBatchReport> own) {
  const Clock::time_point start = Clock::now();
  own = of_last_stage(trainer_.ranks_, std::move(own));
  end_ += Clock::now() - start;
  return own;
}

void Trainer::StagePasses::forward(StepForm& form, const PipelineAction& action) {
  trainer_.enter(Phase::forward);
  Batch& batch = batches_[action.micro_batch];
  if (action.chunk == 0) batch = form.batch(micro_batch(action.micro_batch));
  Pass& pass = under_way_[{action.chunk, action.micro_batch}];
  Hidden h;
  if (!first(action.chunk)) {
    h = links_.receive();
    pass.input = end_here(h, !trainer_.settings_.model.dense());
  }
  const Clock::time_point start = Clock::now();
  {
    const SavedTensors::Scope scope(trainer_.saved_);
    if (first(action.chunk)) h = trainer_.model_.embed(batch.tokens, trainer_.runner_);
    h = trainer_.model_.run_blocks(std::move(h), true, trainer_.runner_, {batch.documents, batch.room},
                                   action.chunk);
    if (last(action.chunk)) pass.objective = objective(form, action, batch, std::exchange(h, {}));
  }
  forward_ += Clock::now() - start;
  if (!last(action.chunk)) {
    pass.outputs = edges_of(h, !trainer_.settings_.model.dense());
    links_.send(h);
  }
  if (action.chunk + 1 == stage_.chunks) batches_.erase(action.micro_batch);
}

// Reads the losses, because the batch is at hand.
at::Tensor Trainer::StagePasses::objective(StepForm& form, const PipelineAction& action, const Batch& batch,
                                           Hidden h) {
  const int64_t i = micro_batch(action.micro_batch);
  const LossParts parts = trainer_.model_.losses(
      std::move(h), batch.targets, trainer_.runner_,
      {.loss_scale = trainer_.device_loss_scale_, .documents = {batch.documents, batch.room}});
  form.take_losses(i, parts);
  const KindScope kind(Kind::activations);
  return trainer_.model_.objective(parts).mul(form.share(i));
}

void Trainer::StagePasses::backward(const PipelineAction& action) {
  trainer_.enter(Phase::backward);
  const auto found = under_way_.find({action.chunk, action.micro_batch});
  Pass pass = std::move(found->second);
  under_way_.erase(found);
  torch::autograd::variable_list gradients;
  if (!pass.objective.defined()) gradients = links_.receive_gradients();
  const Clock::time_point start = Clock::now();
  if (pass.objective.defined()) {
    trainer_.backward(std::exchange(pass.objective, {}));
  } else {
    const KindScope kind(Kind::activations);
    torch::autograd::Engine::get_default_engine().execute(
        pass.outputs, gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true, {});
  }
  backward_ += Clock::now() - start;
  gradients.clear();
  pass.outputs.clear();
  if (pass.input) links_.send_gradients(*pass.input);
}

void Trainer::StagePasses::drop() {
  under_way_.clear();
  batches_.clear();
  links_.forget();
}

StageSeconds Trainer::StagePasses::seconds() const {
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  return {seconds(forward_), seconds(backward_), links_.waited_seconds() + seconds(end_)};
}

// In round t, the c-th chunk of all stages together works on batch t - c of its data-parallel rank. When the
// ranks are asked to stop, a round only takes what was sent to it.
double Trainer::StagePasses::evaluate(const ValidationBatches& batches, int64_t count,
                                      const std::function<bool()>& stop) {
  const at::NoGradGuard no_grad;
  const DataRanks& ranks = trainer_.ranks_;
  const int64_t stages = ranks.stages->size(), behind = stages * stage_.chunks - 1,
                turns = (count + ranks.size() - 1) / ranks.size();
  std::vector<BatchLoss> own(turns);
  bool stopped = false;
  for (int64_t round = 0; round < turns + behind && !stopped; ++round) {
    stopped = stop && stop();
    size_t sent = 0;
    for (int64_t chunk = 0; chunk < stage_.chunks; ++chunk) {
      const int64_t turn = round - (chunk * stages + ranks.stages->rank());
      if (turn < 0 || turn >= turns) continue;
      const int64_t b = turn * ranks.size() + ranks.rank();
      const Batch batch = batches(std::min(b, count - 1));
      Hidden h;
      if (!first(chunk)) {
        links_.expect(batch.tokens.sizes());
        h = links_.receive();
      }
      if (stopped) continue;
      if (first(chunk)) h = trainer_.model_.embed(batch.tokens, trainer_.runner_);
      h = trainer_.model_.run_blocks(std::move(h), false, trainer_.runner_, {}, chunk);
      if (!last(chunk)) {
        links_.send(h, /*left=*/2 * stage_.chunks);
        ++sent;
      } else if (b < count) {  // else a rank for which no batch is left
        const LossParts parts = trainer_.model_.losses(std::move(h), batch.targets, trainer_.runner_);
        own[turn] = {value_of(parts.cross_entropy), static_cast<double>(batch.tokens.numel())};
      }
    }
    links_.settle(sent);
  }
  if (stopped) return std::nan("");
  HeldOutMean mean(*ranks.reports);
  for (const BatchLoss& one : of_last_stage(ranks, std::move(own))) mean.add(one);
  return mean.value();
}

}  // namespace moelab
