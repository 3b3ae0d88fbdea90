#include "kernels/moe/expert_block.h"

#include "kernels/vector/vec.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <tuple>
#include <vector>

#include "kernels/dense/fp8.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/moe/expert_block_cuda_meta.h"
#include "kernels/moe/expert_rows_cpu.h"
#include "kernels/moe/expert_scratch.h"
#include "kernels/moe/ordered_section.h"
#include "kernels/moe/row_products.h"
#include "kernels/moe/swiglu.h"
#include "kernels/operator/differentiable.h"
#include "kernels/operator/op_handle.h"

// Axes: T tokens, D width, K routes a token, E experts, F expert width, R rows, M rows of the widest expert,
// L lanes.
namespace moelab {
namespace {

using at::Tensor;
using namespace expert_block_detail;

Outputs allocate_results(const ExpertCall& call, const Shape& s, bool keep) {
  const Tensor& x = call.x_TD;
  Tensor y = at::empty_like(x, x.options().dtype(call.result_type()));
  KindScope scope(Kind::activation_experts);
  return {y, keep ? at::empty({call.rows, 2 * s.F}, x.options()) : at::empty({0}, x.options())};
}

Pass forward_pass(bool keep) { return keep ? Pass::forward : Pass::forward_without_backward; }
Pass backward_pass(const Tensor& h) { return h.dim() == 2 ? Pass::backward : Pass::backward_recomputing; }

// How many of the widest experts to run concurrently on L lanes, one core each; `rows` is each expert's,
// widest first. The other experts run one after another on all cores, which leaves none idle but costs more:
// 10 % with a matrix unit, where products are little of the time, otherwise 2 %.
int64_t side_by_side(const std::vector<int64_t>& rows, int64_t L) {
  const double cost = has_matrix_unit() ? 1.1 : 1.02;
  const auto together = [&](int64_t left) {
    return cost * static_cast<double>(left) / static_cast<double>(L);
  };
  int64_t left = std::accumulate(rows.begin(), rows.end(), int64_t{0}), best = 0, done = 0;
  double least = together(left);
  std::vector<int64_t> lanes(L);
  for (size_t n = 0; n < rows.size(); ++n) {
    auto lane = std::min_element(lanes.begin(), lanes.end());
    *lane = done = std::max(done, *lane + rows[n]);  // it adds its result after the expert before it
    left -= rows[n];
    const double time = static_cast<double>(done) + together(left);
    if (time > least) continue;
    least = time;
    best = static_cast<int64_t>(n) + 1;
  }
  return best;
}

// Calls body(expert, first row, rows, lane, turn) for each expert, the widest first.
template <class Body>
void for_experts(const Tensor& offsets, std::vector<Scratch::Lane>& lanes, const Body& body) {
  const int32_t* start = offsets.const_data_ptr<int32_t>();
  const int64_t E = offsets.numel() - 1, L = lanes.size();
  const std::vector<int64_t> order = widest_first(start, E);
  std::vector<int64_t> rows(E);
  std::transform(order.begin(), order.end(), rows.begin(),
                 [&](int64_t e) { return int64_t{start[e + 1]} - start[e]; });
  OrderedSection section;
  std::atomic<int64_t> next{0};
  const auto run_lane = [&](Scratch::Lane& lane, int64_t end) {
    // the calling thread's autograd state does not hold in other threads
    at::AutoDispatchBelowADInplaceOrView guard;
    for (int64_t i; (i = next.fetch_add(1)) < end;) {
      OrderedSection::Turn turn(section, i);
      body(order[i], start[order[i]], rows[i], lane, turn);
    }
  };
  const int64_t beside = L == 1 ? 0 : side_by_side(rows, L);
  at::parallel_for(0, beside > 0 ? L : 0, 1, [&](int64_t begin, int64_t end) {
    for (int64_t lane = begin; lane < end; ++lane) run_lane(lanes[lane], beside);
  });
  next = beside;
  run_lane(lanes[0], E);
}

template <class T>
BlockedExpert<T> blocked_expert(const Shape& s, const Scratch::Lane& lane) {
  const auto elements = [](const Tensor& t) { return t.defined() ? t.mutable_data_ptr<Term<T>>() : nullptr; };
  return {s.D,
          s.F,
          elements(lane.rows_MD),
          elements(lane.act_MF),
          elements(lane.across),
          lane.dscale_M.defined() ? lane.dscale_M.mutable_data_ptr<float>() : nullptr,
          BlockedProducts<T>(lane.workers, s.D)};
}

// One expert's computation on its rows.
struct ExpertRows {
  const Tensor& x_TD;
  const Shape& s;
  const Scratch::Lane& lane;
  Tensor w13_e, w2_e;
  const int32_t* route;  // of each row
  Tensor pre;            // (n, 2F): the pre-activation; backward replaces it by its gradient

  int64_t n() const { return pre.size(0); }
};

// Gathers x's rows into lane.rows_MD (rounded to fp8 where products are) and computes their pre-activation;
// with blocked products the activation too, into lane.act_MF. `how`: whether the pre-activation is stored
// through the caches or past them.
void pre_activation(const ExpertRows& rows, Store how) {
  const Scratch::Lane& lane = rows.lane;
  const int64_t n = rows.n();
  const Tensor in = lane.rows_MD.narrow(0, 0, n);
  gather_rows(rows.x_TD, rows.route, n, rows.s.K, in);
  if (lane.workers.defined()) {
    with_element_type(rows.x_TD.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      blocked_expert<T>(rows.s, lane)
          .hidden(n, rows.w13_e.const_data_ptr<T>(), rows.pre.mutable_data_ptr<T>(), how);
    });
    return;
  }
  lane.round(in, Fp8Format::e4m3, Fp8Scale::by_row);
  multiply_rows(rows.pre, in, lane.rounded(rows.w13_e, Fp8Scale::by_row).t(), lane.product);
}

// The rows' output, without router weights, in lane.rows_MD.
Tensor forward_rows(const ExpertRows& rows, Store how) {
  const Shape& s = rows.s;
  const Scratch::Lane& lane = rows.lane;
  const Tensor &w2_e = rows.w2_e, &pre = rows.pre;
  const int64_t n = rows.n();
  const Tensor out = lane.rows_MD.narrow(0, 0, n), act = lane.act_MF.narrow(0, 0, n);
  pre_activation(rows, how);
  if (lane.workers.defined()) {
    with_element_type(rows.x_TD.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      blocked_expert<T>(s, lane).output(n, w2_e.const_data_ptr<T>());
    });
    return out;
  }
  with_element_type(rows.x_TD.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    swiglu_rows(pre.const_data_ptr<scalar_t>(), act.mutable_data_ptr<scalar_t>(), n, s.F);
  });
  lane.round(act, Fp8Format::e4m3, Fp8Scale::by_row);
  multiply_rows(out, act, lane.rounded(w2_e, Fp8Scale::by_row).t(), lane.product);
  return out;
}

// Returns the gradient of the rows. Writes the gradients of the weights and, in the lane, of the scales.
template <class T>
Tensor blocked_backward_rows(const ExpertRows& rows, const Tensor& dy, const Tensor& dw13_e,
                             const Tensor& dw2_e) {
  const Scratch::Lane& lane = rows.lane;
  const int64_t n = rows.n(), K = rows.s.K;
  const Tensor gathered = lane.rows_MD.narrow(0, 0, n);
  T* const h = rows.pre.mutable_data_ptr<T>();
  const auto expert = blocked_expert<T>(rows.s, lane);
  gather_rows(dy, rows.route, n, K, gathered);
  expert.hidden_backward(n, rows.w2_e.const_data_ptr<T>(), lane.scale_M.const_data_ptr<float>(), h);
  expert.output_weights(n, dw2_e.mutable_data_ptr<T>());
  gather_rows(rows.x_TD, rows.route, n, K, gathered);
  expert.hidden_weights(n, h, dw13_e.mutable_data_ptr<T>());
  expert.input(n, rows.w13_e.const_data_ptr<T>(), h);
  return gathered;
}

Tensor backward_rows(const ExpertRows& rows, const Tensor& dy, const Tensor& dw13_e, const Tensor& dw2_e) {
  const Shape& s = rows.s;
  const Scratch::Lane& lane = rows.lane;
  const Tensor &x = rows.x_TD, &w13_e = rows.w13_e, &w2_e = rows.w2_e, &pre = rows.pre;
  const int32_t* const route = rows.route;
  if (lane.workers.defined()) {
    Tensor dx_rows;
    with_element_type(x.scalar_type(), [&](auto zero) {
      dx_rows = blocked_backward_rows<decltype(zero)>(rows, dy, dw13_e, dw2_e);
    });
    return dx_rows;
  }
  const int64_t n = rows.n();
  const Tensor in = lane.rows_MD.narrow(0, 0, n), out = lane.rows2_MD.narrow(0, 0, n),
               act = lane.act_MF.narrow(0, 0, n);
  gather_rows(dy, route, n, s.K, out);
  lane.round(out, Fp8Format::e5m2, Fp8Scale::by_row);
  multiply_rows(act, out, lane.rounded(w2_e, Fp8Scale::by_column), lane.product);  // dA'
  with_element_type(x.scalar_type(), [&](auto zero) {
    using scalar_t = decltype(zero);
    swiglu_backward_rows(pre.mutable_data_ptr<scalar_t>(), act.mutable_data_ptr<scalar_t>(),
                         lane.scale_M.const_data_ptr<float>(), lane.dscale_M.mutable_data_ptr<float>(), n,
                         s.F);
  });
  if (lane.fp8) gather_rows(dy, route, n, s.K, out);
  lane.round(out, Fp8Format::e5m2, Fp8Scale::by_column);
  lane.round(act, Fp8Format::e4m3, Fp8Scale::by_column);
  multiply_transposed(dw2_e, out, act, lane.tail_a, lane.tail_b, lane.product);
  multiply_rows(out, lane.rounded_gradient(pre), lane.rounded(w13_e, Fp8Scale::by_column), lane.product);
  gather_rows(x, route, n, s.K, in);
  lane.round(pre, Fp8Format::e5m2, Fp8Scale::by_column);
  lane.round(in, Fp8Format::e4m3, Fp8Scale::by_column);
  multiply_transposed(dw13_e, pre, in, lane.tail_a, lane.tail_b, lane.product);
  return out;
}

Outputs forward_cpu(const ExpertCall& call, bool keep) {
  const Tensor &x = call.x_TD, &offsets = call.offsets_E1;
  const Shape s(call);
  auto [y, h] = allocate_results(call, s, keep);
  // rows that belong to no expert: an activation policy that compresses saved tensors reads them too
  if (const int64_t end = offsets.const_data_ptr<int32_t>()[offsets.numel() - 1]; keep && end < call.rows) {
    h.narrow(0, end, call.rows - end).zero_();
  }
  Scratch scratch(call, s, forward_pass(keep), y);
  invert_routes(call.row_TK, scratch.route_R);
  scratch.sum_TD.zero_();
  const int32_t* route = scratch.route_R.const_data_ptr<int32_t>();
  for_experts(
      offsets, scratch.lanes,
      [&, &h = h](int64_t e, int64_t first, int64_t n, Scratch::Lane& lane, OrderedSection::Turn& turn) {
        if (n == 0) return;
        float* scale = lane.scale_M.mutable_data_ptr<float>();
        gather_scales(call.weights_TK.const_data_ptr<float>(), route + first, n, scale);
        const Tensor pre = keep ? h.narrow(0, first, n) : lane.h_M2F.narrow(0, 0, n);
        const ExpertRows rows{x, s, lane, call.w13_E2FD[e], call.w2_EDF[e], route + first, pre};
        const Tensor out = forward_rows(rows, keep ? Store::streaming : Store::cached);
        turn.await();
        scatter_add(out, route + first, scale, s.K, scratch.sum_TD);
      });
  if (!scratch.sum_TD.is_same(y)) y.copy_(scratch.sum_TD);
  return {y, h};
}

Outputs forward_meta(const ExpertCall& call, bool keep) {
  const Shape s(call);
  if (meta_is_cuda()) return expert_block_forward_cuda_meta(call, keep);
  auto [y, h] = allocate_results(call, s, keep);
  Scratch scratch(call, s, forward_pass(keep), y);
  return {y, h};
}

Gradients allocate_gradients(const ExpertCall& call) {
  Tensor dx = at::empty_like(call.x_TD, call.x_TD.options().dtype(call.result_type())),
         dweights = at::empty_like(call.weights_TK);
  KindScope scope(Kind::gradients);
  return {dx, dweights, at::empty_like(call.w13_E2FD), at::empty_like(call.w2_EDF)};
}

// Overwrites H, unless it is empty, with its gradient.
Gradients backward_cpu(const ExpertCall& call, const Tensor& dy, const Tensor& h) {
  const Shape s(call);
  auto gradients = allocate_gradients(call);
  auto& [dx, dweights, dw13, dw2] = gradients;
  const bool kept = backward_pass(h) == Pass::backward;
  Scratch scratch(call, s, backward_pass(h), dx);
  invert_routes(call.row_TK, scratch.route_R);
  scratch.sum_TD.zero_();
  dweights.zero_();
  const int32_t* route = scratch.route_R.const_data_ptr<int32_t>();
  for_experts(call.offsets_E1, scratch.lanes,
              [&](int64_t e, int64_t first, int64_t n, Scratch::Lane& lane, OrderedSection::Turn& turn) {
                const Tensor dw13_e = dw13[e], dw2_e = dw2[e];
                if (n == 0) {
                  dw13_e.zero_();
                  dw2_e.zero_();
                  return;
                }
                float *scale = lane.scale_M.mutable_data_ptr<float>(),
                      *dscale = lane.dscale_M.mutable_data_ptr<float>();
                gather_scales(call.weights_TK.const_data_ptr<float>(), route + first, n, scale);
                const Tensor pre = kept ? h.narrow(0, first, n) : lane.h_M2F.narrow(0, 0, n);
                const ExpertRows rows{call.x_TD,     s,  lane, call.w13_E2FD[e], call.w2_EDF[e],
                                      route + first, pre};
                if (!kept) pre_activation(rows, Store::cached);
                const Tensor dx_rows = backward_rows(rows, dy, dw13_e, dw2_e);
                turn.await();
                scatter_add(dx_rows, route + first, nullptr, s.K, scratch.sum_TD);
                float* dweight = dweights.mutable_data_ptr<float>();
                for (int64_t i = 0; i < n; ++i) {
                  if (route[first + i] >= 0) dweight[route[first + i]] = dscale[i];
                }
              });
  if (!scratch.sum_TD.is_same(dx)) dx.copy_(scratch.sum_TD);
  return gradients;
}

Gradients backward_meta(const ExpertCall& call, const Tensor&, const Tensor& h) {
  const Shape s(call);
  if (meta_is_cuda()) return expert_block_backward_cuda_meta(call, h);
  auto gradients = allocate_gradients(call);
  Scratch scratch(call, s, backward_pass(h), std::get<0>(gradients));
  return gradients;
}

}  // namespace

Outputs expert_block_detail::expert_block_forward(const ExpertCall& call, bool keep) {
  return operator_handle<decltype(forward_operator<forward_cpu>)>("moelab::expert_block_forward")
      .call(call.x_TD, call.weights_TK, call.row_TK, call.offsets_E1, call.w13_E2FD, call.w2_EDF, call.rows,
            call.widest, keep, call.fp8, call.wide);
}

Gradients expert_block_detail::expert_block_backward(const ExpertCall& call, const Tensor& dy,
                                                     const Tensor& h) {
  return operator_handle<decltype(backward_operator<backward_cpu>)>("moelab::expert_block_backward")
      .call(dy, call.x_TD, call.weights_TK, call.row_TK, call.offsets_E1, call.w13_E2FD, call.w2_EDF, h,
            call.rows, call.widest, call.fp8, call.wide);
}

namespace {

struct ExpertBlockFunction : Differentiable<ExpertBlockFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& weights,
                        const Tensor& row_TK, const Tensor& offsets, const Tensor& w13, const Tensor& w2,
                        int64_t rows, int64_t widest, bool keep, bool fp8) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [y, h] = expert_block_forward({x, weights, row_TK, offsets, w13, w2, rows, widest, fp8}, keep);
    ctx->save_for_backward({x, weights, row_TK, offsets, w13, w2, h});
    ctx->saved_data["rows"] = rows;
    ctx->saved_data["widest"] = widest;
    ctx->saved_data["fp8"] = fp8;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list dy) {
    const auto saved = ctx->get_saved_variables();
    at::AutoDispatchBelowADInplaceOrView guard;
    const ExpertCall call{saved[0],
                          saved[1],
                          saved[2],
                          saved[3],
                          saved[4],
                          saved[5],
                          ctx->saved_data["rows"].toInt(),
                          ctx->saved_data["widest"].toInt(),
                          ctx->saved_data["fp8"].toBool()};
    auto [dx, dweights, dw13, dw2] = expert_block_backward(call, dy[0].contiguous(), saved[6]);
    saved[6].unsafeGetTensorImpl()->bump_version();  // H is gone: a second backward must not use it
    return {dx, dweights, Tensor(), Tensor(), dw13, dw2, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def(
      "expert_block_forward(Tensor x, Tensor weights, Tensor row, Tensor offsets, Tensor w13, Tensor w2, "
      "int rows, int widest, bool keep, bool fp8, bool wide) -> (Tensor, Tensor)");
  m.def(
      "expert_block_backward(Tensor dy, Tensor x, Tensor weights, Tensor row, Tensor offsets, Tensor w13, "
      "Tensor w2, Tensor(a!) h, int rows, int widest, bool fp8, bool wide) -> (Tensor, Tensor, Tensor, "
      "Tensor)");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("expert_block_forward", forward_operator<forward_cpu>);
  m.impl("expert_block_backward", backward_operator<backward_cpu>);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("expert_block_forward", forward_operator<forward_meta>);
  m.impl("expert_block_backward", backward_operator<backward_meta>);
}

Tensor expert_block(const Tensor& x, const Tensor& weights, const Routes& routes, const Tensor& w13,
                    const Tensor& w2, bool fp8, bool keep_hidden) {
  TORCH_CHECK(routes.row_TK.scalar_type() == at::kInt && routes.row_TK.sizes() == weights.sizes() &&
                  routes.offsets_E1.scalar_type() == at::kInt && routes.offsets_E1.dim() == 1 &&
                  routes.offsets_E1.size(0) == w13.size(0) + 1,
              "expert block: routes of ", routes.row_TK.sizes(), " and offsets of ",
              routes.offsets_E1.sizes(), " must be int32, of the shape of weights ", weights.sizes(),
              " and of ", w13.size(0), " experts and one");
  const bool keep =
      keep_hidden && at::GradMode::is_enabled() &&
      (x.requires_grad() || weights.requires_grad() || w13.requires_grad() || w2.requires_grad());
  return ExpertBlockFunction::apply(x, weights, routes.row_TK, routes.offsets_E1, w13, w2, routes.rows,
                                    routes.widest, keep, fp8);
}

}  // namespace moelab