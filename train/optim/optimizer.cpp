#include "train/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "moe/name_hash.h"

namespace moelab {
namespace {

// Parameters are leaves that require gradients, so this writes without autograd. A value without memory is
// held in another home, and was rounded when it moved there.
void round_into_value(const Parameter& p) {
  if (p.value.storage().data_ptr().get_context() != nullptr) p.value.detach().copy_(p.master);
}

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

at::Tensor zeros(const StateSlot& slot, c10::Device device, Home home) {
  const KindScope kind(slot.kind);
  const HomeScope where(home);
  return at::zeros(slot.shape, at::TensorOptions().dtype(scalar_type(slot.type)).device(device));
}

}  // namespace

Optimizer::Optimizer(std::vector<Parameter> parameters, const OptimSettings& settings, bool masters)
    : Optimizer(settings, masters, Home::device,
                parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().value.device()) {
  for (Parameter& p : parameters) add(std::move(p));
}

Optimizer::Optimizer(const OptimSettings& settings, bool masters, Home home, c10::Device device,
                     std::shared_ptr<StateFile> file, Communicator& ranks, Communicator& expert_ranks)
    : rule_(settings),
      masters_(masters && rule_.keeps_masters()),
      home_(home),
      device_(device),
      file_(std::move(file)),
      ranks_(ranks),
      expert_ranks_(expert_ranks),
      copies_(device),
      numbers_{.beta1 = settings.betas.at(0),
               .beta2 = settings.betas.at(1),
               .eps = settings.eps,
               .weight_decay = settings.weight_decay} {
  TORCH_CHECK(!in_file() || file_, "optimizer: no file for its state");
}

const Parameter& Optimizer::add(Parameter parameter) {
  const at::NoGradGuard no_grad;
  prepare_master(parameter, masters_);
  Held& held = held_.emplace_back();
  held.whole = parameter;
  held.whole.master.reset();
  if (parameter.part) held.first = parameter.part->first;
  parameters_.push_back(divided() ? own_part(std::move(parameter), held) : std::move(parameter));
  Parameter& p = parameters_.back();
  const size_t index = parameters_.size() - 1;
  steps_.push_back(0);
  streams_.push_back(static_cast<int64_t>(name_hash(p.name)));
  held.layout = rule_.layout(p);
  if (!divided()) held.cut = rule_.cut(p);
  if (file_) plan_parts(index);
  if (in_file()) {
    if (p.has_master_copy()) put_master(index);
    return p;
  }
  const bool moves = home_ == Home::host && !device_.is_meta();
  for (const StateSlot& slot : held.layout)
    held.state.push_back(zeros(slot, moves ? c10::kCPU : p.value.device().type(), home_));
  if (home_ == Home::host && p.has_master_copy()) {
    const KindScope kind(Kind::master);
    p.master = host_copy(p.master);
  }
  return p;
}

at::Tensor Optimizer::host_copy(const at::Tensor& tensor) {
  at::Tensor copy = copies_.like(tensor, tensor.scalar_type());
  copies_.start(tensor.detach(), copy);
  copies_.finish();
  return copy;
}

void Optimizer::use_stored_gradient(size_t index, std::optional<StoredGradient> gradient) {
  TORCH_CHECK(!gradient || file_, "optimizer: no file for gradients");
  held_.at(index).gradient = gradient;
}

// An empty part counts its steps, so that they are the same on all ranks.
bool Optimizer::has_gradient(size_t index) const {
  const Parameter& p = parameters_.at(index);
  return held_[index].gradient || p.value.numel() == 0 || p.gradient().defined();
}

void Optimizer::step(double lr, double gradient_scale) {
  std::vector<size_t> from_file;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (passes_file(i)) {
      from_file.push_back(i);
    } else {
      step_parameter(i, lr, gradient_scale);
    }
  }
  if (!from_file.empty()) step_parts(from_file, lr, gradient_scale);
}

void Optimizer::step_parameter(size_t index, double lr, double gradient_scale) {
  if (!has_gradient(index)) return;
  if (passes_file(index)) return step_parts({index}, lr, gradient_scale);
  const Parameter& p = parameters_[index];
  const OptimizerStep numbers = next_numbers(index, lr, gradient_scale);
  if (p.value.numel() > 0) run_rule(p, p.gradient(), held_[index].state, numbers);
}

void Optimizer::step_capturable(const at::Tensor& live) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    TORCH_CHECK(p.gradient().defined() && home_ == Home::device, "optimizer: ", p.name,
                " has no gradient, or its state is not on the device");
    OptimizerStep numbers = numbers_of(i);
    numbers.live = live;
    rule_.step(p, p.gradient(), held_[i].state, numbers);
  }
}

OptimizerStep Optimizer::next_step(double lr) const {
  const bool alike = std::equal(steps_.begin() + 1, steps_.end(), steps_.begin());
  TORCH_CHECK(alike, "optimizer: parameters have taken different numbers of steps");
  OptimizerStep numbers = numbers_;
  numbers.lr = lr;
  numbers.step = steps_.front() + 1;
  return numbers;
}

void Optimizer::count_step() {
  for (int64_t& steps : steps_) ++steps;
}

OptimizerStep Optimizer::numbers_of(size_t index) const {
  OptimizerStep numbers = numbers_;
  if (!parameters_[index].decays) numbers.weight_decay = 0;
  numbers.stream = streams_[index];
  numbers.first_element = held_[index].first;
  return numbers;
}

OptimizerStep Optimizer::next_numbers(size_t index, double lr, double gradient_scale) {
  OptimizerStep numbers = numbers_of(index);
  numbers.lr = lr;
  numbers.gradient_scale = gradient_scale;
  numbers.step = ++steps_[index];
  return numbers;
}

// On CUDA with state on the host, the value is stepped in a host copy, which is copied back while the next
// parameter is stepped. On the CPU the "device" is only a budget, so everything is in reach.
void Optimizer::run_rule(const Parameter& p, const at::Tensor& gradient, const UpdateRule::State& state,
                         const OptimizerStep& numbers) {
  if (home_ == Home::device)  // the gradient may be on the host
    return rule_.step(p, gradient.to(p.value.device(), /*non_blocking=*/true), state, numbers);
  const HomeScope outside(Home::host);  // for the rule's scratch
  if (!p.value.is_cuda()) return rule_.step(p, gradient, state, numbers);
  Parameter host = p;
  host.value = copies_.passing(p.value, p.value.scalar_type());
  const bool own_master = p.master.is_same(p.value), value_counts = own_master || !p.master.defined();
  if (own_master) host.master = host.value;
  if (value_counts) copies_.start(p.value.detach(), host.value);
  at::Tensor down = gradient;
  if (gradient.is_cuda()) {
    down = copies_.passing(gradient, gradient.scalar_type());
    copies_.start(gradient, down);
  }
  if (value_counts || gradient.is_cuda()) copies_.finish();
  rule_.step(host, down, state, numbers);
  copies_.start(host.value, p.value.detach());
  copies_.join();
}

at::Tensor Optimizer::weights(size_t index) const {
  const Parameter& p = parameters_.at(index);
  if (p.master.defined()) return p.master.detach();
  const HomeScope outside(Home::host);
  if (!in_file()) return rule_.joined(p, held_[index].state);
  at::Tensor fp32 =
      at::empty(p.value.sizes(),
                p.value.options().dtype(at::kFloat).device(device_.is_meta() ? c10::kMeta : c10::kCPU));
  const at::NoGradGuard no_grad;
  visit_records(index, false, [&](Part& part) {
    const bool master = part.parameter.master.defined();
    const at::Tensor whole = master ? part.parameter.master : rule_.joined(part.parameter, part.state);
    fp32.view(-1).narrow(0, part.element, whole.numel()).copy_(whole.reshape(-1));
  });
  return fp32;
}

void Optimizer::set_weights(size_t index, const at::Tensor& fp32) {
  const at::NoGradGuard no_grad;
  const Parameter& p = parameters_.at(index);
  if (p.master.defined()) {
    p.master.detach().copy_(fp32);
    if (p.has_master_copy()) round_into_value(p);
  } else if (!in_file()) {
    rule_.split(fp32, p, held_[index].state);
  } else {
    const at::Tensor flat = fp32.detach().reshape(-1);
    visit_records(index, true, [&](Part& part) {
      const Parameter& q = part.parameter;
      const at::Tensor mine = flat.narrow(0, part.element, q.value.numel()).view(q.value.sizes());
      if (!q.master.defined()) return rule_.split(mine, q, part.state);
      q.master.copy_(mine);
      round_into_value(q);
    });
  }
}

// given: the master, then the rule's state in the layout's order; undefined ones stay unchanged.
void Optimizer::set_tensors_of(size_t index, const std::vector<at::Tensor>& given) {
  if (in_file()) return exchange(index, given, true);
  const std::vector<at::Tensor> own = tensors_of(index, true);
  for (size_t k = 0; k < own.size(); ++k) {
    if (given[k].defined() && !given[k].is_same(own[k])) own[k].copy_(given[k]);
  }
}

void Optimizer::restore_steps(std::vector<int64_t> steps) {
  TORCH_CHECK(steps.size() == parameters_.size(), "optimizer: ", steps.size(), " step counts for ",
              parameters_.size(), " parameters");
  steps_ = std::move(steps);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].has_master_copy()) round_into_value(parameters_[i]);
    if (held_[i].master_in_file)
      visit_records(i, false, [](Part& part) { round_into_value(part.parameter); });
  }
}

int64_t Optimizer::rule_bytes() const {
  int64_t bytes = 0;
  for (const Held& held : held_) {
    for (const StateSlot& slot : held.layout) bytes += bytes_of(slot);
  }
  return bytes;
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = rule_bytes();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    const bool master = p.has_master_copy() || held_[i].master_in_file;
    bytes += master ? p.value.numel() * static_cast<int64_t>(sizeof(float)) : 0;
  }
  return bytes;
}

}  // namespace moelab
