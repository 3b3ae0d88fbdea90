#include "train/step/trainer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>

#include "kernels/memory/device_memory.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/update/capturable_step.h"
#include "train/optim/schedule.h"
#include "train/step/compute_type.h"
#include "train/step/held_out_mean.h"
#include "train/step/routing_report.h"
#include "train/step/stage_passes.h"
#include "train/step/step_form.h"

namespace moelab {
namespace {

TransformerOptions training_options(const Settings& settings, c10::Device device, Optimizer& optimizer,
                                    GatheredWeights& gathered, const std::optional<TokenExchange>& exchange,
                                    const DataRanks& ranks) {
  TransformerOptions options = compute_options(settings.precision, device);
  options.seed = static_cast<uint64_t>(settings.train.seed);
  options.masters = keeps_masters(settings);
  options.longest_document = settings.train.sequence;
  options.exchange = exchange ? &*exchange : nullptr;
  options.stage = stage_of(settings.parallel, settings.model.layers, ranks.stages->rank());
  if (ranks.tensor->size() > 1) options.tensor = ranks.tensor;
  options.made = [&](Parameter& parameter) {
    const Parameter kept = optimizer.add(parameter);
    if (!optimizer.divided()) {
      gathered.adopt(parameter);
      parameter = kept;
      return;
    }
    gathered.adopt(parameter, kept, optimizer.parts(optimizer.parameters().size() - 1));
    if (parameter.has_master_copy()) parameter.master.reset();
  };
  return options;
}

// Runs after autograd has accumulated a parameter's gradient.
struct GradientHook : torch::autograd::PostAccumulateGradHook {
  explicit GradientHook(std::function<void()> take) : take(std::move(take)) {}
  void operator()(const torch::autograd::Variable&) override { take(); }
  std::function<void()> take;
};

// Not on the CPU, where the same cores would do both. Not for offloaded weights: they are stepped as they
// pass.
bool steps_beside_backward(const Settings& s, c10::Device device) {
  return device.is_cuda() && s.optim.in_backward && s.placement.optimizer != Home::device &&
         s.placement.parameters == Home::device;
}

std::optional<TokenExchange> exchange_over(Communicator& experts, TokenExchange::Gradients take) {
  if (experts.size() == 1) return std::nullopt;
  return TokenExchange(experts, std::move(take));
}

}  // namespace

double evaluate(Transformer& model, BlockRunner& runner, const ValidationBatches& batches, int64_t count,
                const std::function<bool()>& stop, Communicator& ranks) {
  at::NoGradGuard no_grad;
  HeldOutMean mean(ranks);
  for (int64_t first = 0; first < count; first += ranks.size()) {
    if (stop && stop()) return std::nan("");
    const int64_t b = first + ranks.rank();
    const Batch batch = batches(std::min(b, count - 1));
    const double loss = value_of(model.forward(batch.tokens, batch.targets, false, runner).cross_entropy);
    BatchLoss own;  // a rank for which no batch is left repeats one, because ranks that divide the weights
                    // read them together
    if (b < count) own = {loss, static_cast<double>(batch.tokens.numel())};
    mean.add(own);
  }
  return mean.value();
}

TransformerOptions compute_options(const PrecisionSettings& precision, c10::Device device) {
  TransformerOptions options;
  options.device = device;
  options.compute = compute_type(precision);
  options.fp8 = precision.compute == ComputePrecision::fp8;
  return options;
}

std::vector<TensorEntry> model_state(const Transformer& model) {
  std::vector<TensorEntry> entries;
  for (const Parameter& parameter : model.parameters()) {
    entries.push_back({parameter.name, parameter.master.detach()});
  }
  for (const auto& buffer : model.buffers()) entries.push_back({buffer.name, buffer.tensor});
  return entries;
}

void round_masters(Transformer& model, const PrecisionSettings& precision) {
  for (const Parameter& parameter : model.parameters()) round_as_stored(parameter, precision);
}

Batch batch_on(c10::Device device, const Batch& batch) {
  const KindScope kind(Kind::activations);
  const auto moved = [&](const at::Tensor& x) {
    if (!x.defined() || (device.is_meta() && !meta_is_cuda())) return x;
    return device.is_meta() ? at::empty_like(x) : x.to(device, /*non_blocking=*/true);
  };
  Batch there = batch;
  for (at::Tensor* x : {&there.tokens, &there.targets, &there.documents}) *x = moved(*x);
  return there;
}

Trainer::Trainer(const Settings& settings, c10::Device device, BatchSource batches, DataRanks ranks)
    : settings_(settings),
      device_(device),
      batches_(std::move(batches)),
      ranks_(ranks),
      gathered_(settings, device, settings.parallel.zero == 3 ? *ranks.weights : one_rank(),
                settings.parallel.zero == 3 ? *ranks.expert_weights : one_rank()),
      state_file_(make_state_file(settings.placement, device)),
      optimizer_(settings.optim, keeps_masters(settings), settings.placement.optimizer, device, state_file_,
                 settings.parallel.zero > 0 ? *ranks.updates : one_rank(),
                 settings.parallel.zero > 0 ? *ranks.expert_updates : one_rank()),
      exchange_(exchange_over(*ranks.experts,
                              [this](const at::Tensor& weight, int64_t sender, const at::Tensor& gradient) {
                                take_of_experts(weight, sender, gradient);
                              })),
      model_(settings.model, settings.attention,
             training_options(settings, device, optimizer_, gathered_, exchange_, ranks)),
      gradients_(settings.placement, device, optimizer_, state_file_, ranks, settings.parallel.reduce,
                 settings.precision.gradient_sums),
      recompute_(settings.activations, settings.model.layers),
      saved_(make_tensor_store(settings, device), model_.parameters()),
      loss_scale_(settings.precision) {
  if (steps_beside_backward(settings, device)) host_steps_ = std::make_unique<SerialWorker>();
  if (!settings.reference.path.empty()) reference_.emplace(settings, device);
  if (captures_step(settings.memory.cuda_graphs)) graph_ = make_graph();
  if (ranks.stages->size() > 1) open_stage();
  hook_gradients();
}

Trainer::~Trainer() = default;

void Trainer::hook_gradients() {
  gradients_.accumulate(micro_batches());
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) {
    if (optimizer_.parameters()[i].exchanged) continue;  // take_of_experts
    const auto take = [this, i] { settings_.optim.in_backward ? consume_gradient(i) : gradients_.take(i); };
    torch::autograd::impl::set_post_acc_grad_hooks(optimizer_.leaf(i), std::make_unique<GradientHook>(take));
  }
}

// Of experts, as soon as one rank's rows have given a gradient.
void Trainer::take_of_experts(const at::Tensor& weight, int64_t sender, const at::Tensor& gradient) {
  size_t index = 0;
  while (!optimizer_.leaf(index).is_same(weight)) ++index;
  gradients_.take(index, sender, gradient);
  if (settings_.optim.in_backward && sender + 1 == ranks_.experts->size()) consume_gradient(index);
}

void Trainer::enter(Phase phase) const {
  if (device_.is_cpu()) cpu_ledger().enter_phase(phase);
  if (device_.is_meta()) meta_ledger().enter_phase(phase);
}

void Trainer::check_budget() const {
  if (!device_.is_cpu() || !cpu_ledger().refused()) return;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "a request for ", cpu_ledger().refused_bytes(),
                   " bytes passed the memory budget inside a library");
}

double Trainer::share_of_step(const Batch& batch) const {
  return batch.documents.defined() ? batch.share : 1 / static_cast<double>(micro_batches());
}

LossParts Trainer::forward(const Batch& batch) {
  enter(Phase::forward);
  std::optional<ReferenceHead> reference;
  if (reference_) reference = reference_->read(batch.tokens, {batch.documents, batch.room});
  const SavedTensors::Scope scope(saved_);
  return model_.forward(batch.tokens, batch.targets, true, runner_,
                        {.loss_scale = device_loss_scale_,
                         .reference = reference ? &*reference : nullptr,
                         .documents = {batch.documents, batch.room}});
}

void Trainer::backward(const LossParts& parts, const at::Tensor& share) {
  enter(Phase::backward);
  KindScope kind(Kind::activations);
  backward(model_.objective(parts).mul(share));
}

void Trainer::backward(const at::Tensor& objective) {
  const KindScope kind(Kind::activations);
  std::vector<at::Tensor> gradient;  // of the objective; none: 1
  if (device_loss_scale_) gradient.push_back(device_loss_scale_->to(at::kFloat));
  torch::autograd::backward({objective}, gradient);
  if (!host_steps_) return;
  const WaitClock::Scope wait(waits_for_host_steps_);
  host_steps_->post([] {}).get();
}

void Trainer::consume_gradient(size_t index) {
  TORCH_CHECK(consumed_squares_[index] == kNotConsumed, "the gradient of ",
              optimizer_.parameters()[index].name, " came in two parts: optim.in_backward stepped one");
  consumed_squares_[index] = 0;
  if (!host_steps_) return step_consumed(index);
  const WaitClock::Scope wait(waits_for_host_steps_);
  host_steps_->post([this, index] { step_consumed(index); }, kWaitingGradients);
}

void Trainer::step_consumed(size_t index) {
  at::NoGradGuard no_grad;
  const bool taken = optimizer_.parameters()[index].exchanged;
  if (ranks_.size() > 1 && !taken) gradients_.take(index);
  consumed_squares_[index] = gradients_.squares_of(index);
  const StepDecision decision = decide_step(consumed_squares_[index], 0, 1, settings_.optim.clip);
  if (!decision.skipped) {
    written_ = true;
    step_parameter(index, decision.gradient_scale);
  }
  gradients_.drop(index);
}

// One by one where weights are offloaded; otherwise all in one call, so that state streams from a file
// without a pause. What other ranks have stepped comes while the next step begins.
void Trainer::step_all(double gradient_scale) {
  const size_t count = optimizer_.parameters().size();
  if (gathered_.active()) {
    for (size_t i = 0; i < count; ++i) step_parameter(i, gradient_scale);
    return;
  }
  const bool in_one_call = !optimizer_.divided() || state_file_;
  if (in_one_call) optimizer_.step(lr_, gradient_scale);
  if (!optimizer_.divided()) return;
  for (size_t i = 0; i < count; ++i) {
    if (!in_one_call) optimizer_.step_parameter(i, lr_, gradient_scale);
    gathered_.expect(i, optimizer_.gather_value(i));
  }
}

void Trainer::step_parameter(size_t index, double gradient_scale) {
  if (!optimizer_.has_gradient(index)) return;
  change_weights(index, [&] { optimizer_.step_parameter(index, lr_, gradient_scale); });
}

// A weight that is held whole needs the parts that other ranks have changed.
void Trainer::change_weights(size_t index, const std::function<void()>& change) {
  gathered_.change(index, [&] {
    change();
    if (optimizer_.divided() && !gathered_.holds_part(index)) optimizer_.gather_value(index)->wait();
  });
}

double Trainer::consumed_squares() const {
  double sum = 0;
  for (const double squares : consumed_squares_) sum += squares == kNotConsumed ? 0 : squares;
  return sum;
}

void Trainer::reserve() const {
  const KindScope kind(Kind::optimizer);
  at::empty({reserved_bytes_}, at::TensorOptions().device(device_).dtype(at::kByte));
}

// Returns once all ranks have room for the update: none writes before.
void Trainer::reserve_on_all_ranks() {
  gradients_.finish_exchanges();
  reserve();
  wait_for_all(*ranks_.control);
}

// The forward and backward passes of all micro-batches; false: the step was stopped. A pipeline finishes what
// is under way, so that it stops between steps alone.
bool Trainer::run_passes(StepForm& form) {
  if (stage_passes_) {
    if (form.stopped()) return false;
    stage_passes_->run(form);
    return true;
  }
  for (int64_t i = ranks_.rank(); i < micro_batches(); i += ranks_.size()) {
    if (form.stopped()) return false;
    LossParts parts;
    if (const Batch batch = form.batch(i); batch.tokens.defined()) {
      parts = forward(batch);
    } else {
      return false;
    }
    backward(parts, form.share(i));
    form.take_losses(i, parts);
  }
  return true;
}

// What is the same in a launched and in a captured step.
void Trainer::run_step(StepForm& form) {
  model_.reset_routing_stats();
  if (!run_passes(form)) return gradients_.drop();
  check_budget();
  form.take_routing();  // before the update: it allocates
  update(form);
}

void Trainer::update(StepForm& form) {
  enter(Phase::step);
  const int64_t held = device_memory(device_).allocated;
  const at::NoGradGuard no_grad;
  if (form.decide()) {
    const std::vector<at::Tensor> router_biases = form.router_biases();
    form.update_weights();
    model_.set_router_biases(router_biases);
  }
  update_bytes_ = phase_peak(device_, Phase::step) - held;
  gradients_.drop();
}

StepReport Trainer::step(int64_t step, const std::function<bool()>& stop) {
  written_ = false;
  lr_ = learning_rate(settings_.optim, settings_.train.steps, step);
  consumed_squares_.assign(optimizer_.parameters().size(), kNotConsumed);
  if (loss_scale_.used()) {
    device_loss_scale_ =
        graph_ ? capturable_loss_scale(graph_->live)
               : at::full({}, loss_scale_.value(), at::TensorOptions(device_).dtype(at::kDouble));
  }
  const HomeSeconds waited_before = waited();
  StepReport report;
  report.lr = lr_;
  report.loss_scale = loss_scale_.value();
  report.micro_batch = settings_.train.micro_batch;
  if (reference_) report.reference_kl = 0;
  graph_ ? CapturedStep(*this, step, stop, report).run() : LaunchedStep(*this, step, stop, report).run();
  if (!report.interrupted) loss_scale_.update(report.skipped);
  report.waited = waited().since(waited_before);
  return report;
}

void Trainer::set_split(int64_t micro_batch, int64_t accumulation) {
  TrainSettings& train = settings_.train;
  TORCH_CHECK(micro_batch * accumulation == train.micro_batch * train.accumulation &&
                  (accumulation == 1 || !settings_.optim.in_backward),
              micro_batch, " x ", accumulation, " rows cannot take the place of ", train.micro_batch, " x ",
              train.accumulation);
  train.micro_batch = micro_batch;
  train.accumulation = accumulation;
  if (graph_) graph_ = make_graph();
  hook_gradients();
}

// A backward pass that threw leaves tasks in its thread's queue, and these keep the step's graph alive until
// another pass removes them.
void Trainer::finish_backward() {
  const HomeScope outside(Home::host);
  const at::Tensor one = at::ones({}).requires_grad_();
  torch::autograd::backward({one.mul(1)}, {});
}

bool Trainer::abandon_step() {
  if (host_steps_) host_steps_ = std::make_unique<SerialWorker>();  // posted tasks finish first
  if (device_.is_cpu()) finish_backward();
  if (graph_) graph_->graph.forget();
  if (stage_passes_) stage_passes_->drop();
  gradients_.drop();
  gathered_.expect_none();
  gathered_.release_all();
  if (reference_) reference_->release();
  return !written_;
}

void Trainer::met_again() {
  if (!optimizer_.divided() || gathered_.active()) return;  // else updates come before a step ends
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) optimizer_.gather_value(i)->wait();
}

double Trainer::evaluate(const ValidationBatches& batches, int64_t count, const std::function<bool()>& stop) {
  enter(Phase::forward);
  const double loss = stage_passes_
                          ? stage_passes_->evaluate(batches, count, stop)
                          : moelab::evaluate(model_, runner_, batches, count, stop, *ranks_.reports);
  check_budget();
  return loss;
}

void Trainer::read_model(const std::function<void(Transformer&, BlockRunner&)>& read) {
  enter(Phase::forward);
  const at::NoGradGuard no_grad;
  gathered_.all_arrive();
  try {
    read(model_, runner_);
    check_budget();
  } catch (const c10::OutOfMemoryError&) {
    gathered_.release_all();
    throw;
  }
}

}  // namespace moelab
