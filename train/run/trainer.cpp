#include "train/run/trainer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>

#include "kernels/memory/ledger.h"
#include "kernels/squared_norm.h"
#include "train/optim/schedule.h"
#include "train/precision/compute_type.h"

namespace moelab {
namespace {

TransformerOptions training_options(const Settings& settings, c10::Device device) {
  TransformerOptions options = compute_options(settings.precision, device);
  options.seed = static_cast<uint64_t>(settings.train.seed);
  options.masters = keeps_masters(settings);
  return options;
}

// Runs after autograd has accumulated a parameter's gradient: books its bytes as gradients, and over several
// micro-batches of 16-bit gradients sums them in fp32 instead.
struct GradientHook : torch::autograd::PostAccumulateGradHook {
  GradientHook(Parameter& parameter, bool sum_in_fp32) : parameter(parameter), sum_in_fp32(sum_in_fp32) {}

  void operator()(const torch::autograd::Variable& value) override {
    at::NoGradGuard no_grad;
    at::Tensor& gradient = value.mutable_grad();
    if (!sum_in_fp32) {
      retag(gradient, Kind::gradients);
    } else if (parameter.accumulated.defined()) {
      parameter.accumulated.add_(gradient);
      gradient.reset();
    } else {
      KindScope kind(Kind::gradients);
      parameter.accumulated = gradient.to(at::kFloat);
      gradient.reset();
    }
  }

  Parameter& parameter;
  bool sum_in_fp32;
};

// Runs the trainer's step of one parameter once its gradient is whole.
struct StepHook : torch::autograd::PostAccumulateGradHook {
  explicit StepHook(std::function<void()> step) : step(std::move(step)) {}
  void operator()(const torch::autograd::Variable&) override { step(); }
  std::function<void()> step;
};

double value_of(const at::Tensor& scalar) { return scalar.is_meta() ? 0 : scalar.item<double>(); }

}  // namespace

double evaluate(Transformer& model, const ValidationBatches& batches, int64_t count,
                const std::function<bool()>& stop) {
  at::NoGradGuard no_grad;
  DirectRunner direct;
  double sum = 0, tokens = 0;
  for (int64_t b = 0; b < count; ++b) {
    if (stop && stop()) return std::nan("");
    const Batch batch = batches(b);
    const auto weight = static_cast<double>(batch.tokens.numel());
    sum += weight * value_of(model.forward(batch.tokens, batch.targets, false, direct).cross_entropy);
    tokens += weight;
  }
  return tokens > 0 ? sum / tokens : std::nan("");
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

void round_masters(Transformer& model) {
  at::NoGradGuard no_grad;
  for (const Parameter& parameter : model.parameters()) {
    if (!parameter.value.is_same(parameter.master)) parameter.value.copy_(parameter.master);
  }
}

Trainer::Trainer(const Settings& settings, c10::Device device, BatchSource batches)
    : settings_(settings),
      device_(device),
      batches_(std::move(batches)),
      model_(settings.model, settings.attention, training_options(settings, device)),
      optimizer_(model_.parameters(), settings.optim, keeps_masters(settings)),
      recompute_(recomputed_layers(settings.activations, settings.model.layers)),
      saved_(make_tensor_store(settings, device), model_.parameters()),
      loss_scale_(settings.precision) {
  hook_gradients();
}

void Trainer::hook_gradients() {
  if (settings_.optim.in_backward) {
    for (size_t i = 0; i < optimizer_.parameters().size(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(
          optimizer_.parameters()[i].value, std::make_unique<StepHook>([this, i] { consume_gradient(i); }));
    }
    return;
  }
  for (Parameter& parameter : optimizer_.parameters()) {
    const bool sum_in_fp32 = settings_.train.accumulation > 1 && parameter.value.scalar_type() != at::kFloat;
    torch::autograd::impl::set_post_acc_grad_hooks(parameter.value,
                                                   std::make_unique<GradientHook>(parameter, sum_in_fp32));
  }
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

LossParts Trainer::forward(const Batch& batch) {
  enter(Phase::forward);
  const SavedTensors::Scope scope(saved_);
  return model_.forward(batch.tokens, batch.targets, true, recompute_, loss_scale_.value());
}

void Trainer::backward(const LossParts& parts) {
  enter(Phase::backward);
  KindScope kind(Kind::activations);
  at::Tensor objective = model_.objective(parts).div(static_cast<double>(settings_.train.accumulation));
  if (loss_scale_.value() != 1) objective = objective.mul(loss_scale_.value());
  torch::autograd::backward({objective}, {});
}

void Trainer::drop_gradients() {
  for (Parameter& parameter : optimizer_.parameters()) {
    parameter.value.mutable_grad().reset();
    parameter.accumulated.reset();
  }
}

void Trainer::consume_gradient(size_t index) {
  at::NoGradGuard no_grad;
  Parameter& parameter = optimizer_.parameters()[index];
  double& norm = consumed_norms_[index];
  TORCH_CHECK(norm < 0, "the gradient of ", parameter.name,
              " came in two parts: optim.in_backward stepped one");
  norm = squared_norm(parameter.gradient());
  if (std::isfinite(norm)) {
    optimizer_.step_parameter(index, lr_, clip_scale(std::sqrt(norm), settings_.optim.clip));
  }
  parameter.value.mutable_grad().reset();
}

double Trainer::consumed_norm() const {
  double sum = 0;
  for (const double norm : consumed_norms_) sum += norm == kNotConsumed ? 0 : norm;
  return std::sqrt(sum);
}

void Trainer::update(StepReport& report) {
  enter(Phase::step);
  at::NoGradGuard no_grad;
  const bool in_backward = settings_.optim.in_backward;
  report.lr = lr_;
  report.loss_scale = loss_scale_.value();
  report.gradient_norm =
      in_backward ? consumed_norm() : gradient_norm(optimizer_.parameters()) / report.loss_scale;
  report.skipped = !std::isfinite(report.loss) || !std::isfinite(report.gradient_norm);
  if (!report.skipped) {
    const double clip = clip_scale(report.gradient_norm, settings_.optim.clip);
    if (!in_backward) optimizer_.step(lr_, clip / report.loss_scale);
    model_.update_router_biases();
  }
  loss_scale_.update(report.skipped);
  drop_gradients();
}

StepReport Trainer::step(int64_t step, const std::function<bool()>& stop) {
  StepReport report;
  lr_ = learning_rate(settings_.optim, settings_.train.steps, step);
  consumed_norms_.assign(optimizer_.parameters().size(), kNotConsumed);
  model_.reset_routing_stats();
  const int64_t rows = settings_.train.micro_batch, micro_batches = settings_.train.accumulation;
  for (int64_t i = 0; i < micro_batches; ++i) {
    if (stop && stop()) {
      drop_gradients();
      report.interrupted = true;
      return report;
    }
    const LossParts parts = forward(batches_(step, i * rows, rows));
    backward(parts);
    report.loss += value_of(parts.cross_entropy) / static_cast<double>(micro_batches);
    report.balance_loss += value_of(parts.balance_loss) / static_cast<double>(micro_batches);
    report.z_loss += value_of(parts.z_loss) / static_cast<double>(micro_batches);
  }
  check_budget();
  update(report);
  read_routing(report);
  return report;
}

void Trainer::read_routing(StepReport& report) const {
  if (device_.is_meta() || settings_.model.dense()) return;
  double dropped = 0, routes = 0;
  report.load_max_over_mean = 0;
  const auto layers = static_cast<double>(settings_.model.layers);
  for (const RoutingStats& stats : model_.routing_stats()) {
    const at::Tensor load = stats.load_E.to(at::kDouble);
    const double total = std::max(1.0, load.sum().item<double>());
    const at::Tensor share = load / total;
    report.load_max_over_mean += share.max().item<double>() * static_cast<double>(share.numel()) / layers;
    report.load_entropy -= at::xlogy(share, share).sum().item<double>() / layers;
    dropped += stats.dropped.item<double>();
    routes += total;
  }
  report.dropped_fraction = dropped / routes;
}

double Trainer::evaluate(const ValidationBatches& batches, int64_t count, const std::function<bool()>& stop) {
  enter(Phase::forward);
  const double loss = moelab::evaluate(model_, batches, count, stop);
  check_budget();
  return loss;
}

std::vector<TensorEntry> Trainer::optimizer_state() const {
  std::vector<TensorEntry> entries;
  for (const NamedState& state : optimizer_.state()) {
    const bool weights = state.name.ends_with(".master") || state.name.ends_with(".correction");
    if (!weights) entries.push_back({state.name, state.tensor});
  }
  return entries;
}

std::vector<TensorEntry> Trainer::weights() const {
  std::vector<TensorEntry> entries;
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) {
    entries.push_back({optimizer_.parameters()[i].name, optimizer_.weights(i)});
  }
  for (const auto& buffer : model_.buffers()) entries.push_back({buffer.name, buffer.tensor});
  return entries;
}

void Trainer::set_weights(const std::vector<TensorEntry>& entries) {
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) optimizer_.set_weights(i, entries.at(i).tensor);
}

Trainer::StateBytes Trainer::state_bytes() const {
  StateBytes bytes;
  for (const Parameter& parameter : optimizer_.parameters()) {
    const bool own_master = parameter.master.defined() && !parameter.master.is_same(parameter.value);
    const auto size = static_cast<int64_t>(parameter.value.nbytes());
    bytes.parameters += size + (own_master ? static_cast<int64_t>(parameter.master.nbytes()) : 0);
    const int64_t gradient = settings_.train.accumulation > 1 ? parameter.value.numel() * 4 : size;
    const bool one_at_a_time = settings_.optim.in_backward;
    bytes.gradients = one_at_a_time ? std::max(bytes.gradients, gradient) : bytes.gradients + gradient;
  }
  bytes.optimizer = optimizer_.rule_bytes();
  return bytes;
}

}  // namespace moelab
