#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/memory/ledger.h"
#include "moe/transformer.h"
#include "tests/kernels/reference.h"
#include "tests/train/settings/overrides.h"
#include "train/activations/recompute.h"
#include "train/activations/saved_tensors.h"
#include "train/settings/options.h"
#include "train/step/compute_type.h"

// A whole model on real text; tests compare its gradients.
namespace moelab::test {

using Gradients = std::vector<std::pair<std::string, at::Tensor>>;

// A text that the program contains (its settings help), with its bytes as tokens: (batch, sequence).
inline std::pair<at::Tensor, at::Tensor> text_batch(const Settings& s) {
  const std::string text = settings_help([](const std::string&) { return true; });
  const int64_t B = s.train.micro_batch, S = s.train.sequence;
  const HomeScope outside(Home::host);
  at::Tensor tokens = at::empty({B, S}, at::kLong), targets = at::empty({B, S}, at::kLong);
  for (int64_t i = 0; i < B * S; ++i) {
    tokens.data_ptr<int64_t>()[i] = static_cast<unsigned char>(text.at(i % (text.size() - 1)));
    targets.data_ptr<int64_t>()[i] = static_cast<unsigned char>(text.at(i % (text.size() - 1) + 1));
  }
  return {tokens, targets};
}

inline Settings settings_with(const Overrides& overrides) {
  return pico_settings(Overrides{"train.sequence=128", "train.micro_batch=4"} + overrides);
}

// A model and a batch. All settings except the model's may change between two backward passes.
class Model {
 public:
  explicit Model(const Settings& s)
      : model_(s.model, s.attention,
               {.compute = compute_type(s.precision), .fp8 = s.precision.compute == ComputePrecision::fp8}),
        batch_(text_batch(s)) {
    use(s);
  }

  void use(const Settings& s) { use(s, make_tensor_store(s, at::kCPU)); }
  void use(const Settings& s, std::unique_ptr<TensorStore> store) {
    settings_ = s;
    saved_ = std::make_unique<SavedTensors>(std::move(store), model_.parameters());
  }

  Gradients gradients() {
    backward(forward());
    Gradients all;
    for (Parameter& parameter : model_.parameters()) {
      all.emplace_back(parameter.name, parameter.value.grad());
      parameter.value.mutable_grad().reset();
    }
    return all;
  }

  at::Tensor forward() {
    runner_ = std::make_unique<RecomputeRunner>(settings_.activations, settings_.model.layers);
    const SavedTensors::Scope scope(*saved_);
    return model_.objective(model_.forward(batch_.first, batch_.second, true, *runner_));
  }
  void backward(const at::Tensor& objective) { torch::autograd::backward({objective}, {}); }

  // A few steps of plain gradient descent, so that the gradients are those of a model that has learnt
  // something. Steps three times as long diverge on some texts, with results that then differ between CPUs.
  void descend(int steps) {
    for (int i = 0; i < steps; ++i) {
      const Gradients all = gradients();
      at::NoGradGuard no_grad;
      for (size_t p = 0; p < all.size(); ++p) model_.parameters()[p].value.sub_(all[p].second, 0.1);
    }
  }

  const SavedTensors& saved() const { return *saved_; }
  Transformer& transformer() { return model_; }

 private:
  Settings settings_;
  Transformer model_;
  std::pair<at::Tensor, at::Tensor> batch_;
  std::unique_ptr<SavedTensors> saved_;
  std::unique_ptr<RecomputeRunner> runner_;  // what is recomputed in segments asks it in backward
};

inline void expect_equal(const Gradients& a, const Gradients& b, const std::string& where) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(a[i].second, b[i].second)) << where << ": " << a[i].first;
  }
}

}  // namespace moelab::test
