#include "train/optim/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "kernels/squared_norm.h"

namespace moelab {
namespace {

bool has_master_copy(const Parameter& p) { return p.master.defined() && !p.master.is_same(p.value); }

// Parameters are leaves that require gradients; this writes to them unseen by autograd.
void round_into_value(const Parameter& p) { p.value.detach().copy_(p.master); }

void prepare_master(Parameter& p, bool keep) {
  const auto dtype = p.value.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || (dtype == at::kHalf && keep),
              "optimizer: ", p.name, " is ", dtype, ", must be fp32, bf16, or fp16 with a master");
  if (dtype == at::kFloat) {
    p.master = p.value;
    return;
  }
  if (!keep) {
    p.master.reset();
    return;
  }
  if (!p.master.defined()) {
    const KindScope kind(Kind::master);
    p.master = p.value.detach().to(at::kFloat);
    return;
  }
  TORCH_CHECK(p.master.scalar_type() == at::kFloat && p.master.sizes() == p.value.sizes(),
              "optimizer: the master of ", p.name, " must be fp32 of its value's shape");
  retag(p.master, Kind::master);
  round_into_value(p);
}

at::Tensor zeros(const StateSlot& slot, c10::Device device) {
  const KindScope kind(slot.kind);
  return at::zeros(slot.shape, at::TensorOptions().dtype(slot.dtype).device(device));
}

// FNV-1a of the name.
int64_t stream_of(const std::string& name) {
  uint64_t hash = 1469598103934665603ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return static_cast<int64_t>(hash);
}

int64_t bytes_of(const at::Tensor& t) { return static_cast<int64_t>(t.nbytes()); }

}  // namespace

bool keeps_masters(const Settings& settings) {
  return settings.precision.master == MasterWeights::fp32 &&
         make_update_rule(settings.optim)->keeps_masters();
}

Optimizer::Optimizer(std::vector<Parameter> parameters, const OptimSettings& settings, bool masters)
    : parameters_(std::move(parameters)),
      rule_(make_update_rule(settings)),
      steps_(parameters_.size(), 0),
      numbers_{.beta1 = settings.betas.at(0),
               .beta2 = settings.betas.at(1),
               .eps = settings.eps,
               .weight_decay = settings.weight_decay} {
  for (Parameter& p : parameters_) {
    prepare_master(p, masters && rule_->keeps_masters());
    layouts_.push_back(rule_->layout(p));
    streams_.push_back(stream_of(p.name));
    auto& state = states_.emplace_back();
    for (const StateSlot& slot : layouts_.back()) state.push_back(zeros(slot, p.value.device()));
  }
}

void Optimizer::step(double lr, double gradient_scale) {
  for (size_t i = 0; i < parameters_.size(); ++i) step_parameter(i, lr, gradient_scale);
}

void Optimizer::step_parameter(size_t index, double lr, double gradient_scale) {
  const Parameter& p = parameters_.at(index);
  const at::Tensor& gradient = p.gradient();
  if (!gradient.defined()) return;
  OptimizerStep numbers = numbers_;
  numbers.lr = lr;
  numbers.gradient_scale = gradient_scale;
  if (!p.decays) numbers.weight_decay = 0;
  numbers.step = ++steps_[index];
  numbers.stream = streams_[index];
  rule_->step(p, gradient, states_[index], numbers);
}

at::Tensor Optimizer::weights(size_t index) const {
  const Parameter& p = parameters_.at(index);
  if (p.master.defined()) return p.master.detach();
  const HomeScope outside(Home::host);
  return rule_->joined(p, states_[index]);
}

void Optimizer::set_weights(size_t index, const at::Tensor& fp32) {
  const at::NoGradGuard no_grad;
  const Parameter& p = parameters_.at(index);
  if (!p.master.defined()) {
    rule_->split(fp32, p, states_[index]);
    return;
  }
  p.master.detach().copy_(fp32);
  if (has_master_copy(p)) round_into_value(p);
}

std::vector<NamedState> Optimizer::state() const {
  std::vector<NamedState> named;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    if (has_master_copy(p)) named.push_back({p.name + ".master", p.master});
    for (size_t k = 0; k < layouts_[i].size(); ++k) {
      named.push_back({p.name + "." + layouts_[i][k].suffix, states_[i][k]});
    }
  }
  return named;
}

void Optimizer::restore_steps(std::vector<int64_t> steps) {
  TORCH_CHECK(steps.size() == parameters_.size(), "optimizer: ", steps.size(), " step counts for ",
              parameters_.size(), " parameters");
  steps_ = std::move(steps);
  for (const Parameter& p : parameters_) {
    if (has_master_copy(p)) round_into_value(p);
  }
}

int64_t Optimizer::rule_bytes() const {
  int64_t bytes = 0;
  for (const auto& state : states_) {
    for (const at::Tensor& tensor : state) bytes += bytes_of(tensor);
  }
  return bytes;
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = rule_bytes();
  for (const Parameter& p : parameters_) bytes += has_master_copy(p) ? bytes_of(p.master) : 0;
  return bytes;
}

double gradient_norm(const std::vector<Parameter>& parameters) {
  double sum = 0;
  for (const Parameter& p : parameters) {
    if (p.gradient().defined()) sum += squared_norm(p.gradient());
  }
  return std::sqrt(sum);
}

double clip_scale(double norm, double clip) { return clip > 0 && norm > clip ? clip / norm : 1; }

}  // namespace moelab
