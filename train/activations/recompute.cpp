#include "train/activations/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>

#include "kernels/memory/ledger.h"
#include "train/activations/saved_tensors.h"

namespace moelab {
namespace {

using torch::autograd::variable_list;

// The backward of a recomputed block or half of one: runs the block again with gradients enabled, then
// backpropagates through it. That inner pass accumulates the parameters' gradients; this node returns only
// the input's.
struct RecomputeBackward : torch::autograd::Node {
  torch::autograd::SavedVariable x;
  BlockFunction block;
  RoutingState routing;
  Kind kind = Kind::activations;

  variable_list apply(variable_list&& gradients) override {
    const at::Tensor input = x.unpack().detach().requires_grad_();
    KindScope scope(kind);
    BlockOutput output;
    {
      at::AutoGradMode grad(true);
      output = block(input, routing);
    }
    variable_list roots, root_gradients;
    const auto add_root = [&](const at::Tensor& root, const at::Tensor& gradient) {
      if (!gradient.defined() || !root.requires_grad()) return;
      roots.push_back(root);
      root_gradients.push_back(gradient);
    };
    add_root(output.x_BSD, gradients[0]);
    add_root(output.balance_loss, gradients[1]);
    add_root(output.z_loss, gradients[2]);
    output = {};
    gradients.clear();
    torch::autograd::backward(roots, root_gradients);
    return {input.grad()};
  }

  void release_variables() override {
    x.reset_data();
    routing = {};
  }

  std::string name() const override { return "RecomputeBackward"; }
};

}  // namespace

std::vector<bool> recomputed_layers(const ActivationSettings& settings, int64_t layers) {
  std::vector<bool> chosen(layers, settings.checkpoint == CheckpointMode::full);
  if (settings.checkpoint == CheckpointMode::every) {
    for (int64_t i = 0; i < layers; i += settings.every) chosen[i] = true;
  } else if (settings.checkpoint == CheckpointMode::layers) {
    for (const int64_t i : settings.layers) chosen.at(i) = true;
  } else if (settings.checkpoint == CheckpointMode::ratio) {
    for (int64_t i = 0; i < layers; ++i) {
      // block i is chosen if ceil(ratio * n) grows from n = i to n = i + 1
      const auto whole = [&](int64_t n) { return static_cast<int64_t>(settings.ratio * n + 1 - 1e-9); };
      chosen[i] = whole(i + 1) > whole(i);
    }
  }
  return chosen;
}

BlockOutput recompute(const at::Tensor& x_BSD, RoutingState& routing, const BlockFunction& f) {
  if (!at::GradMode::is_enabled()) return f(x_BSD, routing);
  BlockOutput output;
  {
    at::NoGradGuard no_grad;
    output = f(x_BSD, routing);
  }
  auto node = std::shared_ptr<RecomputeBackward>(new RecomputeBackward(), torch::autograd::deleteNode);
  node->x = torch::autograd::SavedVariable(x_BSD, false);
  node->block = f;
  node->routing = routing;
  node->kind = KindScope::current();
  node->set_next_edges(torch::autograd::collect_next_edges(x_BSD));
  for (at::Tensor* part : {&output.x_BSD, &output.balance_loss, &output.z_loss}) {
    torch::autograd::set_history(*part, node);
  }
  return output;
}

namespace {

class RecomputedPieces : public SelectiveRecompute {
 public:
  explicit RecomputedPieces(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}
  bool recomputes(Piece piece) const override {
    return std::find(pieces_.begin(), pieces_.end(), piece) != pieces_.end();
  }
  BlockOutput recompute(const at::Tensor& x_BSD, RoutingState& routing, const BlockFunction& half) override {
    return moelab::recompute(x_BSD, routing, half);
  }
  at::Tensor recompute_for_readers(const at::Tensor& x, const TensorFunction& f) override {
    return SavedTensors::recompute_for_readers(x, f);
  }

 private:
  std::vector<Piece> pieces_;
};

}  // namespace

RecomputeRunner::RecomputeRunner(std::vector<bool> recomputed, std::vector<Piece> pieces)
    : recomputed_(std::move(recomputed)) {
  if (!pieces.empty()) pieces_ = std::make_unique<RecomputedPieces>(std::move(pieces));
}

BlockOutput RecomputeRunner::run(int64_t layer, const at::Tensor& x_BSD, const BlockFunction& block) {
  SavedTensors::begin_block(layer + 1 == static_cast<int64_t>(recomputed_.size()));
  RoutingState routing;
  return recomputed_.at(layer) ? recompute(x_BSD, routing, block) : block(x_BSD, routing);
}

SelectiveRecompute* RecomputeRunner::pieces(int64_t layer) {
  return recomputed_.at(layer) ? nullptr : pieces_.get();
}

}  // namespace moelab
