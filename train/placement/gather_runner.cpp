#include "train/placement/gather_runner.h"

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

namespace moelab {
namespace {

using torch::autograd::variable_list;

// Passes gradients on unchanged when all have arrived, and calls `passing` first.
struct Gate : torch::autograd::Node {
  std::function<void()> passing;

  variable_list apply(variable_list&& gradients) override {
    passing();
    return std::move(gradients);
  }
  std::string name() const override { return "GatherGate"; }
};

// Puts a gate between the tensors and their later users; tensors without gradient get none.
void put_gate(std::initializer_list<at::Tensor*> tensors, std::function<void()> passing) {
  if (!at::GradMode::is_enabled()) return;
  std::vector<at::Tensor*> gated;
  torch::autograd::edge_list edges;
  for (at::Tensor* tensor : tensors) {
    if (!tensor->requires_grad()) continue;
    gated.push_back(tensor);
    edges.push_back(torch::autograd::impl::gradient_edge(*tensor));
  }
  auto gate = std::shared_ptr<Gate>(new Gate(), torch::autograd::deleteNode);
  gate->passing = std::move(passing);
  gate->set_next_edges(std::move(edges));
  for (at::Tensor* tensor : gated) {
    *tensor = tensor->detach();
    torch::autograd::set_history(*tensor, gate);
  }
}

}  // namespace

void GatherRunner::use(OuterWeight weight, const std::function<void()>& read) {
  weight == OuterWeight::embedding ? weights_.arrive(-1) : weights_.all_arrive();
  const int64_t layer = weights_.layer_of(weight);
  weights_.gather(layer);
  if (weight == OuterWeight::embedding) weights_.fetch(0);
  read();
  weights_.release(layer);
}

BlockOutput GatherRunner::run(int64_t layer, const at::Tensor& x_BSD, const BlockFunction& block) {
  weights_.arrive(layer);
  if (!weights_.active()) return inner_.run(layer, x_BSD, block);
  weights_.gather(layer);
  if (layer + 1 < fetch_end_) weights_.fetch(layer + 1);
  at::Tensor x = x_BSD;
  put_gate({&x}, [this, layer] { weights_.release(layer); });
  BlockOutput out = inner_.run(layer, x, block);
  if (!weights_.keeps_gathered() || !at::GradMode::is_enabled()) weights_.release(layer);
  put_gate({&out.x_BSD, &out.balance_loss, &out.z_loss}, [this, layer] {
    weights_.gather(layer);
    weights_.fetch(layer - 1);
  });
  return out;
}

// A segment that runs again is the last to need weights from its end on: backward has passed there.
Hidden GatherRunner::run_segment(int64_t end, Hidden hidden, const SegmentFunction& blocks) {
  if (!weights_.active()) return inner_.run_segment(end, std::move(hidden), blocks);
  return inner_.run_segment(end, std::move(hidden), [this, end, blocks](Hidden in) {
    const bool again = inner_.segment() > 1 && at::GradMode::is_enabled();
    fetch_end_ = again ? end : kNoEnd;
    const auto restore = c10::make_scope_exit([this] { fetch_end_ = kNoEnd; });
    return blocks(std::move(in));
  });
}

}  // namespace moelab
