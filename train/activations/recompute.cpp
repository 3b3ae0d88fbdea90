#include "train/activations/recompute.h"

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <utility>

#include "kernels/memory/ledger.h"
#include "train/activations/saved_tensors.h"

namespace moelab {
namespace {

using torch::autograd::variable_list;

// The backward of what is recomputed: runs it again with gradients enabled, then backpropagates through it.
// That inner pass accumulates the parameters' gradients; this node returns only the inputs'.
struct RecomputeBackward : torch::autograd::Node {
  std::vector<torch::autograd::SavedVariable> inputs;
  std::function<variable_list(const variable_list&)> again;  // replays the routing
  Kind kind = Kind::activations;

  variable_list apply(variable_list&& gradients) override {
    variable_list fresh;
    for (const auto& input : inputs) fresh.push_back(input.unpack().detach().requires_grad_());
    KindScope scope(kind);
    variable_list outputs;
    {
      at::AutoGradMode grad(true);
      outputs = again(fresh);
    }
    variable_list roots, root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    outputs.clear();
    gradients.clear();
    torch::autograd::backward(roots, root_gradients);
    variable_list of_inputs;
    for (const at::Tensor& input : fresh) of_inputs.push_back(input.grad());
    return of_inputs;
  }

  void release_variables() override {
    for (auto& input : inputs) input.reset_data();
    again = nullptr;
  }

  std::string name() const override { return "RecomputeBackward"; }
};

// Makes `output` (BlockOutput or Hidden), computed from `inputs` without gradients, the result of `again`,
// which is called in backward and leaves the same tensors undefined.
template <class Output, class Again>
void put_node(const variable_list& inputs, Output& output, Again again) {
  auto node = std::shared_ptr<RecomputeBackward>(new RecomputeBackward(), torch::autograd::deleteNode);
  for (const at::Tensor& input : inputs) node->inputs.emplace_back(input, false);
  node->again = [again = std::move(again)](const variable_list& fresh) mutable -> variable_list {
    Output made = again(fresh);
    return {std::move(made.x_BSD), std::move(made.balance_loss), std::move(made.z_loss)};
  };
  node->kind = KindScope::current();
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (at::Tensor* part : {&output.x_BSD, &output.balance_loss, &output.z_loss})
    torch::autograd::set_history(*part, node);
}

}  // namespace

std::vector<bool> recomputed_layers(const ActivationSettings& settings, int64_t layers) {
  const bool alone = settings.checkpoint == CheckpointMode::segments && settings.every == 1;
  std::vector<bool> chosen(layers, settings.checkpoint == CheckpointMode::full || alone);
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

int64_t recomputed_together(const ActivationSettings& settings) {
  return settings.checkpoint == CheckpointMode::segments ? settings.every : 1;
}

BlockOutput recompute(const at::Tensor& x_BSD, RoutingState& routing, const BlockFunction& f) {
  if (!at::GradMode::is_enabled()) return f(x_BSD, routing);
  BlockOutput output;
  {
    at::NoGradGuard no_grad;
    output = f(x_BSD, routing);
  }
  put_node({x_BSD}, output,
           [f, routing](const variable_list& inputs) mutable { return f(inputs[0], routing); });
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

RecomputeRunner::RecomputeRunner(std::vector<bool> recomputed, std::vector<Piece> pieces, int64_t together)
    : recomputed_(std::move(recomputed)), together_(together) {
  if (!pieces.empty()) pieces_ = std::make_unique<RecomputedPieces>(std::move(pieces));
}

RecomputeRunner::RecomputeRunner(const ActivationSettings& settings, int64_t layers)
    : RecomputeRunner(recomputed_layers(settings, layers), settings.pieces, recomputed_together(settings)) {}

Hidden RecomputeRunner::run_segment(int64_t /*end*/, Hidden h, const SegmentFunction& blocks) {
  if (together_ == 1 || !at::GradMode::is_enabled()) return blocks(std::move(h));
  const auto run = [this, blocks](Hidden in, std::vector<RoutingState>& routing) {
    routing_ = &routing;
    const auto restore = c10::make_scope_exit([this] { routing_ = nullptr; });
    return blocks(std::move(in));
  };
  std::vector<RoutingState> routing(recomputed_.size());
  const variable_list inputs = {h.x_BSD, h.balance_loss, h.z_loss};
  {
    const at::NoGradGuard no_grad;
    h = run(std::move(h), routing);
  }
  put_node(inputs, h, [run, routing = std::move(routing)](const variable_list& in) mutable {
    return run({in[0], in[1], in[2]}, routing);
  });
  return h;
}

BlockOutput RecomputeRunner::run(int64_t layer, const at::Tensor& x_BSD, const BlockFunction& block) {
  SavedTensors::begin_block(layer + 1 == static_cast<int64_t>(recomputed_.size()));
  if (routing_) return block(x_BSD, routing_->at(layer));
  RoutingState routing;
  return recomputed_.at(layer) ? recompute(x_BSD, routing, block) : block(x_BSD, routing);
}

SelectiveRecompute* RecomputeRunner::pieces(int64_t layer) {
  return recomputed_.at(layer) ? nullptr : pieces_.get();
}

}  // namespace moelab
