#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "kernels/moe/router_device.h"
#include "kernels/moe/router_gpu_products.h"
#include "kernels/moe/router_parts.h"

// Axes: T tokens, D width, E experts, K choices a token, B sequences of S tokens.
namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using namespace router_detail;

cuda::RouterScores cuda_scores(const Tensor& logits, const OptionalTensor& documents, bool sigmoid) {
  return {logits.const_data_ptr<float>(), documents ? documents->const_data_ptr<int32_t>() : nullptr,
          sigmoid};
}

// LibTorch's stable sort keeps equal tokens in order.
void choose_for_experts_cuda(const Tensor& logits, const OptionalTensor& bias, bool sigmoid, int64_t capacity,
                             const Shape& s, const Tensor& ids) {
  Tensor scores = sigmoid ? logits.sigmoid() : logits.softmax(1);
  if (bias) scores.add_(*bias);
  const int64_t taken = std::min(capacity, s.S);
  const Tensor order =
      std::get<1>(scores.view({s.B, s.S, s.E}).sort(/*stable=*/true, 1, /*descending=*/true));
  const Tensor experts = at::arange(s.E, ids.options()).expand({s.B, taken, s.E});
  ids.fill_(-1);
  ids.view({s.B, s.S, s.E}).scatter_(1, order.narrow(1, 0, taken), experts);
}

Forward forward_cuda(const ForwardCall& call) {
  const Tensor& x = call.x_TD;
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const Shape s = call.shape();
  const cuda::RouterShape shape = cuda_shape(s);
  auto outputs = allocate_outputs(x, s, call.replay_TK);
  auto& [logits, lse, ids, weights, fraction, balance, z, load] = outputs;
  if (s.T == 0) {
    for (const Tensor& sum : {balance, z, load}) sum.zero_();
    return outputs;
  }
  router_logits(x, call.w_ED, logits);
  const cuda::RouterScores scores = cuda_scores(logits, call.documents, call.sigmoid);
  const OptionalTensor& bias = call.bias_E;
  const bool chosen = call.expert_choice || call.replay_TK;
  if (call.expert_choice && !call.replay_TK)
    choose_for_experts_cuda(logits, bias, call.sigmoid, call.capacity, s, ids);
  const Tensor scratch = cuda_scratch(x, s);
  cuda::router_forward(
      scores, shape, bias ? bias->const_data_ptr<float>() : nullptr, chosen, call.normalise,
      scratch.mutable_data_ptr<double>(),
      {lse.mutable_data_ptr<float>(), ids.mutable_data_ptr<int32_t>(), weights.mutable_data_ptr<float>(),
       fraction.mutable_data_ptr<float>(), load.mutable_data_ptr<float>(), balance.mutable_data_ptr<float>(),
       z.mutable_data_ptr<float>()},
      stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return outputs;
}

Gradients backward_cuda(const BackwardCall& call) {
  const Tensor &x = call.x_TD, &w = call.w_ED;
  const c10::cuda::CUDAGuard guard(x.device());
  const Shape s = call.shape();
  Tensor dx = at::empty_like(x), dw = at::empty_like(w), dlogits = at::empty_like(call.logits_TE);
  const Tensor counted = call.documents ? call.documents->ge(0).sum() : Tensor();  // int64
  cuda::router_backward(
      cuda_scores(call.logits_TE, call.documents, call.sigmoid), cuda_shape(s),
      call.lse_T.const_data_ptr<float>(), call.ids_TK.const_data_ptr<int32_t>(),
      call.fraction_BE.const_data_ptr<float>(), call.normalise,
      {call.dweights_TK.const_data_ptr<float>(), call.dbalance.const_data_ptr<float>(),
       call.dz.const_data_ptr<float>(), counted.defined() ? counted.const_data_ptr<int64_t>() : nullptr},
      dlogits.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  router_gradients(x, w, dlogits, dx, dw);
  return {dx, dw};
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("router_forward", forward_operator<forward_cuda>);
  m.impl("router_backward", backward_operator<backward_cuda>);
}

}  // namespace moelab
