#include "train/run/trainer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

#include "kernels/memory/ledger.h"
#include "train/optim/schedule.h"

namespace moelab {
namespace {

TransformerOptions model_options(const Settings& settings, c10::Device device) {
  TransformerOptions options;
  options.device = device;
  options.compute = settings.precision.compute == ComputePrecision::bf16 ? at::kBFloat16 : at::kFloat;
  options.seed = static_cast<uint64_t>(settings.train.seed);
  return options;
}

// Runs after autograd has accumulated a parameter's gradient: books its bytes as gradients, and over several
// micro-batches of bf16 gradients sums them in fp32 instead.
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
      model_(settings.model, settings.attention, model_options(settings, device)),
      optimizer_(model_.parameters(), settings.optim),
      recompute_(recomputed_layers(settings.activations, settings.model.layers)) {
  hook_gradients();
}

void Trainer::hook_gradients() {
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
  return model_.forward(batch.tokens, batch.targets, true, recompute_);
}

void Trainer::backward(const LossParts& parts) {
  enter(Phase::backward);
  KindScope kind(Kind::activations);
  at::Tensor objective = model_.objective(parts).div(static_cast<double>(settings_.train.accumulation));
  torch::autograd::backward({objective}, {});
}

void Trainer::drop_gradients() {
  for (Parameter& parameter : optimizer_.parameters()) {
    parameter.value.mutable_grad().reset();
    parameter.accumulated.reset();
  }
}

void Trainer::update(int64_t step, StepReport& report) {
  enter(Phase::step);
  at::NoGradGuard no_grad;
  report.lr = learning_rate(settings_.optim, settings_.train.steps, step);
  report.gradient_norm = gradient_norm(optimizer_.parameters());
  report.skipped = !std::isfinite(report.loss) || !std::isfinite(report.gradient_norm);
  if (!report.skipped) {
    optimizer_.step(report.lr, clip_scale(report.gradient_norm, settings_.optim.clip));
    model_.update_router_biases();
  }
  drop_gradients();
}

StepReport Trainer::step(int64_t step, const std::function<bool()>& stop) {
  StepReport report;
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
  update(step, report);
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
    if (!state.name.ends_with(".master")) entries.push_back({state.name, state.tensor});
  }
  return entries;
}

Trainer::StateBytes Trainer::state_bytes() const {
  StateBytes bytes;
  for (const Parameter& parameter : optimizer_.parameters()) {
    const bool own_master = !parameter.master.is_same(parameter.value);
    const auto size = static_cast<int64_t>(parameter.value.nbytes());
    bytes.parameters += size + (own_master ? static_cast<int64_t>(parameter.master.nbytes()) : 0);
    bytes.gradients += settings_.train.accumulation > 1 ? parameter.value.numel() * 4 : size;
    bytes.optimizer += 2 * 4 * parameter.value.numel();
  }
  return bytes;
}

}  // namespace moelab
