#include "bench/kernels/operation.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/rope.h"
#include "kernels/dense/embedding.h"
#include "kernels/dense/rms_norm.h"
#include "kernels/loss/linear_cross_entropy.h"
#include "tests/kernels/cases/attention.h"
#include "tests/kernels/cases/embedding.h"
#include "tests/kernels/cases/linear_cross_entropy.h"
#include "tests/kernels/cases/rms_norm.h"
#include "tests/kernels/cases/rope.h"

namespace moelab::bench {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Operation rms_norm_operation(const test::RmsNormCase& c) {
  auto in = test::make_input(c);
  const Tensor x = in.x.requires_grad_(), weight = in.weight.requires_grad_();
  return {[=] { return Tensors{rms_norm(x, weight, 1e-5)}; }, {in.grad}, {x, weight}};
}

Operation rope_operation(const test::RopeCase& c) {
  auto in = test::make_input(c);
  const Tensor leaf = in.qkv.requires_grad_(), table = rope_table(c.S, c.hd, 10000, c.device);
  // rope_ refuses a leaf; this tensor shares the leaf's memory. Rotating it repeatedly is harmless.
  return {[=] { return Tensors{rope_(at::_unsafe_view(leaf, leaf.sizes()), c.rotated, table)}; },
          {in.grad},
          {leaf}};
}

template <AttentionPath path>
Operation attention_operation(const test::AttentionCase& c) {
  auto in = test::make_input(c);
  const Tensor qkv = in.qkv.requires_grad_();
  return {[=] { return Tensors{causal_attention(qkv, c.heads, c.kv, path, c.span)}; }, {in.grad}, {qkv}};
}

Operation embedding_operation(const test::EmbeddingCase& c) {
  auto in = test::make_input(c);
  const Tensor weight = in.weight.requires_grad_(), tokens = in.tokens;
  return {[=] { return Tensors{moelab::embedding(weight, tokens)}; }, {in.grad}, {weight}};
}

Operation linear_cross_entropy_operation(const test::LinearCrossEntropyCase& c) {
  auto in = test::make_input(c);
  const Tensor x = in.x.requires_grad_(), weight = in.weight.requires_grad_(), targets = in.targets;
  // 0.5, as with two micro-batches: with 1 backward would have nothing to scale
  return {[=] { return Tensors{linear_cross_entropy(x, weight, targets)}; },
          {at::scalar_tensor(0.5, c.device)},
          {x, weight}};
}

}  // namespace

void add_dense_operators(c10::Device device) {
  add_operator("rms_norm", test::rms_norm_cases(), device, rms_norm_operation);
  add_operator("rope", test::rope_cases(), device, rope_operation);
  add_operator("attention", test::attention_cases(), device, attention_operation<AttentionPath::flash>);
  add_operator("attention_materialised", test::attention_cases(), device,
               attention_operation<AttentionPath::materialised>);
  add_operator("attention_span", test::attention_span_cases(), device,
               attention_operation<AttentionPath::flash>);
  add_operator("embedding", test::embedding_cases(), device, embedding_operation);
  add_operator("linear_cross_entropy", test::linear_cross_entropy_cases(), device,
               linear_cross_entropy_operation);
}

}  // namespace moelab::bench
