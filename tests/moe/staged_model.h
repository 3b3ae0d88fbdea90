#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <vector>

#include "moe/transformer.h"

namespace moelab::test {

struct StagedBatch {
  at::Tensor tokens, targets, documents;  // documents: undefined for whole rows
};

// One model as stages in one process, the residual stream handed on from each to the next.
class StagedModel {
 public:
  // `counts`: blocks of each stage.
  StagedModel(const ModelSettings& model, TransformerOptions options, const std::vector<int64_t>& counts) {
    Stage& stage = options.stage = {.first = 0, .count = 0, .embedding = true, .head = false};
    for (size_t i = 0; i < counts.size(); ++i) {
      stage.first += stage.count;
      stage.count = counts[i];
      stage.embedding = i == 0;
      stage.head = i + 1 == counts.size();
      stages_.push_back(std::make_unique<Transformer>(model, AttentionSettings{}, options));
    }
  }

  const std::vector<std::unique_ptr<Transformer>>& stages() const { return stages_; }

  // Forward and backward through all stages. `change` may alter what a stage hands on.
  LossParts step(const StagedBatch& batch, BlockRunner& runner,
                 const std::function<void(Hidden&)>& change = {}) {
    std::vector<Hidden> in, out;
    for (size_t i = 0; i < stages_.size(); ++i) {
      in.push_back(i == 0 ? stages_[i]->embed(batch.tokens, runner) : received(out.back()));
      out.push_back(stages_[i]->run_blocks(in.back(), true, runner, batch.documents));
      if (change && i + 1 < stages_.size()) change(out.back());
    }
    const LossParts parts = stages_.back()->losses(out.back(), batch.targets, runner);
    torch::autograd::backward({stages_.back()->objective(parts)}, {});
    for (size_t i = stages_.size() - 1; i-- > 0;) backward(out[i], in[i + 1]);
    return parts;
  }

 private:
  static Hidden received(const Hidden& sent) {
    const auto copy = [](const at::Tensor& t) { return t.detach().clone().requires_grad_(); };
    return {copy(sent.x_BSD), copy(sent.balance_loss), copy(sent.z_loss)};
  }

  static void backward(const Hidden& out, const Hidden& received) {
    std::vector<at::Tensor> roots, gradients;
    const auto add = [&](const at::Tensor& root, const at::Tensor& leaf) {
      if (!leaf.grad().defined() || !root.requires_grad()) return;
      roots.push_back(root);
      gradients.push_back(leaf.grad());
    };
    add(out.x_BSD, received.x_BSD);
    add(out.balance_loss, received.balance_loss);
    add(out.z_loss, received.z_loss);
    torch::autograd::backward(roots, gradients);
  }

  std::vector<std::unique_ptr<Transformer>> stages_;
};

}  // namespace moelab::test
