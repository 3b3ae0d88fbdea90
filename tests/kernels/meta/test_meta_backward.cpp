#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "tests/kernels/meta/meta_parity.h"

namespace moelab {
namespace {

// The gradients of sum(output) with respect to the leaves.
Tensors backward(const Tensor& output, Tensors leaves) {
  torch::autograd::backward({output}, {at::ones_like(output)});
  Tensors gradients;
  for (const Tensor& leaf : leaves) gradients.push_back(leaf.grad());
  return gradients;
}

// A formula like those that ATen generates, whose sum has a temporary as its first operand: in such a node
// nothing works in place.
struct Formula : torch::autograd::TraceableFunction {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const Tensor& g = gradients[0];
    return {at::add(at::mul(g, g), g)};
  }
};

Tensor through_formula(const Tensor& x) {
  const auto node = std::make_shared<Formula>();
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  Tensor y = x.detach().clone();
  torch::autograd::set_history(y, node);
  return y;
}

std::vector<Case> backward_cases() {
  return {
      {"index_select",
       [](auto& in) {
         auto x = in.leaf({T, D});
         return backward(x.index_select(0, in.ids({40}, T)), {x});
       },
       {0, 512}},
      {"index_put",
       [](auto& in) {
         auto x = in.leaf({T, D}), y = in.leaf({40, D});
         return backward(x.index_put({in.ids({40}, T)}, y), {x, y});
       }},
      {"index_add",
       [](auto& in) {
         auto x = in.leaf({T, D}), y = in.leaf({40, D});
         return backward(x.index_add(0, in.ids({40}, T), y), {x, y});
       }},
      {"gather",
       [](auto& in) {
         auto x = in.leaf({T, E});
         return backward(x.gather(1, in.ids({T, K}, E)), {x});
       },
       {0, 1536}},
      {"scatter",
       [](auto& in) {
         auto x = in.leaf({T, E}), y = in.leaf({T, K});
         return backward(x.scatter(1, in.ids({T, K}, E), y), {x, y});
       },
       {0, 1152}},
      {"topk",
       [](auto& in) {
         auto x = in.leaf({T, E});
         return backward(std::get<0>(x.topk(K, -1)), {x});
       },
       {0, 1536}},
      {"max",
       [](auto& in) {
         auto x = in.leaf({T, E});
         return backward(std::get<0>(x.max(-1)), {x});
       },
       {0, 1536}},
      {"softmax",
       [](auto& in) {
         auto x = in.leaf({T, E});
         return backward(at::softmax(x, -1, at::kFloat), {x});
       }},
      {"sigmoid",
       [](auto& in) {
         auto x = in.leaf({T, E});
         return backward(at::sigmoid(x), {x});
       }},
      {"logsumexp",
       [](auto& in) {
         auto x = in.leaf({T, E});
         return backward(at::logsumexp(x, -1), {x});
       }},
      {"log_softmax nll",
       [](auto& in) {
         auto x = in.leaf({T, V});
         return backward(at::cross_entropy_loss(x.to(at::kFloat), in.ids({T}, V)), {x});
       }},
      {"rms_norm",
       [](auto& in) {
         auto x = in.leaf({T, D}), w = in.leaf({D});
         return backward(at::rms_norm(x, {D}, w, 1e-5), {x, w});
       }},
      {"linear",
       [](auto& in) {
         auto x = in.leaf({2, T / 2, D}), w = in.leaf({F, D});
         return backward(at::linear(x, w), {x, w});
       }},
      {"bmm",
       [](auto& in) {
         auto x = in.leaf({E, T, D}), w = in.leaf({E, D, F});
         return backward(at::bmm(x, w), {x, w});
       }},
      {"einsum",
       [](auto& in) {
         auto x = in.leaf({T, E, 8}), w = in.leaf({T, D});
         return backward(at::einsum("tec,td->ecd", {x, w}), {x, w});
       }},
      {"swiglu",
       [](auto& in) {
         auto x = in.leaf({T, 2 * F});
         auto p = x.split(F, -1);
         return backward(at::silu(p[0]) * p[1], {x});
       }},
      {"embedding",
       [](auto& in) {
         auto w = in.leaf({V, D});
         return backward(at::embedding(w, in.ids({2, 48}, V)), {w});
       }},
      {"where",
       [](auto& in) {
         auto x = in.leaf({T, D});
         return backward(at::where(x > 0, x, at::zeros({}, x.options().requires_grad(false))), {x});
       }},
      {"masked_fill",
       [](auto& in) {
         auto x = in.leaf({T, D});
         return backward(x.masked_fill(x > 0, -1), {x});
       }},
      {"clamp",
       [](auto& in) {
         auto x = in.leaf({T, D});
         return backward(x.clamp(-1, 1), {x});
       }},
      {"cat",
       [](auto& in) {
         auto x = in.leaf({T, D});
         return backward(at::cat({x, x}, -1), {x});
       }},
      {"cast",
       [](auto& in) {
         auto x = in.fp32({T, D}).requires_grad_();
         return backward(x.to(in.dtype) * 2, {x});
       },
       {12, 0}},
      {"stacked experts",
       [](auto& in) {
         auto x = in.leaf({E, D, F});
         return backward(at::stack({x[0], x[1]}), {x});
       }},
      {"flash attention",
       [](auto& in) {
         auto q = in.leaf({2, 4, 48, 16}), k = in.leaf({2, 4, 48, 16}), v = in.leaf({2, 4, 48, 16});
         return backward(std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true)),
                         {q, k, v});
       },
       kLibrary},
      {"materialised attention",
       [](auto& in) {
         auto q = in.leaf({2, 4, 48, 16}), k = in.leaf({2, 4, 48, 16});
         auto mask = at::ones({48, 48}, at::TensorOptions().device(in.device).dtype(at::kBool)).triu(1);
         return backward(at::softmax(at::matmul(q, k.transpose(-2, -1)).masked_fill(mask, -1e9), -1), {q, k});
       }},
      {"residual",
       [](auto& in) {
         auto x = in.leaf({T, D}), w = in.leaf({D, D});
         Tensor y = x * 2;
         y = y + at::mm(y, w);
         y = y + at::mm(y, w);
         return backward(y, {x, w});
       }},
      {"formula with a temporary",
       [](auto& in) {
         auto x = in.leaf({T, D});
         return backward(through_formula(x), {x});
       }},
      {"two micro-batches",
       [](auto& in) {
         auto x = in.real({T, D}), w = in.leaf({F, D});
         backward(at::linear(x, w), {w});
         return backward(at::linear(x, w), {w});
       }},
      {"tied weight",
       [](auto& in) {
         auto w = in.leaf({V, D});
         return backward(at::mm(at::embedding(w, in.ids({T}, V)), w.t()), {w});
       }},
      {"repeat_interleave",
       [](auto& in) {
         auto x = in.leaf({2, 4, 8, 16});
         return backward(x.repeat_interleave(2, 1), {x});
       }},
  };
}

TEST_F(MetaParity, Backward) { check(backward_cases()); }

}  // namespace
}  // namespace moelab
