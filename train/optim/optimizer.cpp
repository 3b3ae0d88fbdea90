#include "train/optim/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>
#include <utility>

#include "kernels/adamw.h"
#include "kernels/memory/ledger.h"
#include "kernels/squared_norm.h"

namespace moelab {
namespace {

bool has_master_copy(const Parameter& p) { return p.value.scalar_type() == at::kBFloat16; }

// Parameters are leaves that require gradients; this writes to them unseen by autograd.
void round_into_value(const Parameter& p) { p.value.detach().copy_(p.master); }

void prepare_master(Parameter& p) {
  if (!has_master_copy(p)) {
    TORCH_CHECK(p.value.scalar_type() == at::kFloat, "AdamW: ", p.name, " must be fp32 or bf16");
    p.master = p.value.detach();
    return;
  }
  if (!p.master.defined()) {
    const KindScope kind(Kind::master);
    p.master = p.value.detach().to(at::kFloat);
    return;
  }
  TORCH_CHECK(p.master.scalar_type() == at::kFloat && p.master.sizes() == p.value.sizes(),
              "AdamW: the master of ", p.name, " must be fp32 of its value's shape");
  retag(p.master, Kind::master);
  round_into_value(p);
}

at::Tensor zero_moment(const at::Tensor& master) {
  const KindScope kind(Kind::optimizer);
  return at::zeros_like(master);
}

}  // namespace

AdamW::AdamW(std::vector<Parameter> parameters, const OptimSettings& settings)
    : parameters_(std::move(parameters)),
      steps_(parameters_.size(), 0),
      beta1_(settings.betas.at(0)),
      beta2_(settings.betas.at(1)),
      eps_(settings.eps),
      weight_decay_(settings.weight_decay) {
  for (Parameter& p : parameters_) {
    prepare_master(p);
    m_.push_back(zero_moment(p.master));
    v_.push_back(zero_moment(p.master));
  }
}

void AdamW::step(double lr, double gradient_scale) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    const at::Tensor& gradient = p.gradient();
    if (!gradient.defined()) continue;
    const AdamWStep numbers{.lr = lr,
                            .beta1 = beta1_,
                            .beta2 = beta2_,
                            .eps = eps_,
                            .weight_decay = p.decays ? weight_decay_ : 0,
                            .step = ++steps_[i],
                            .gradient_scale = gradient_scale};
    const auto copy = has_master_copy(p) ? std::optional(p.value) : std::nullopt;
    adamw_(p.master, gradient, m_[i], v_[i], copy, numbers);
  }
}

std::vector<NamedState> AdamW::state() const {
  std::vector<NamedState> named;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    if (has_master_copy(p)) named.push_back({p.name + ".master", p.master});
    named.push_back({p.name + ".m", m_[i]});
    named.push_back({p.name + ".v", v_[i]});
  }
  return named;
}

void AdamW::restore_steps(std::vector<int64_t> steps) {
  TORCH_CHECK(steps.size() == parameters_.size(), "AdamW: ", steps.size(), " step counts for ",
              parameters_.size(), " parameters");
  steps_ = std::move(steps);
  for (const Parameter& p : parameters_) {
    if (has_master_copy(p)) round_into_value(p);
  }
}

int64_t AdamW::state_bytes() const {
  int64_t bytes = 0;
  for (const NamedState& s : state()) bytes += static_cast<int64_t>(s.tensor.nbytes());
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
