#include "kernels/expert_block.h"

#include "kernels/vec.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <tuple>
#include <vector>

#include "kernels/cpu/row_products.h"
#include "kernels/cpu/swiglu.h"
#include "kernels/cpu/turns.h"
#include "kernels/fp8.h"
#include "kernels/memory/ledger.h"
#include "kernels/op_handle.h"

// Axes: T tokens, D width, K routes a token, E experts, F expert width, R rows, M rows of the widest expert,
// L lanes.
namespace moelab {
namespace {

using at::Tensor;
constexpr int64_t kRowGrain = 32;  // rows a task when rows are copied
constexpr int64_t kMaxLanes = 4;   // each has scratch of its own

// On a few cores experts go side by side, a core each, and nothing waits inside of a product; on many cores
// one after another, all cores in each.
int64_t lane_count(int64_t experts) {
  const int64_t threads = at::get_num_threads();
  return threads <= std::min(kMaxLanes, experts) ? threads : 1;
}

struct Shape {
  int64_t T, D, K, E, F;
  Shape(const Tensor& x, const Tensor& weights, const Tensor& w13, const Tensor& w2)
      : T(x.size(0)), D(x.size(1)), K(weights.size(1)), E(w13.size(0)), F(w2.size(2)) {
    TORCH_CHECK(x.is_contiguous() && w13.is_contiguous() && w2.is_contiguous(),
                "expert block: contiguous tensors");
    TORCH_CHECK(w13.sizes() == at::IntArrayRef({E, 2 * F, D}) && w2.sizes() == at::IntArrayRef({E, D, F}),
                "expert block: weights ", w13.sizes(), " and ", w2.sizes(), " do not match width ", D);
    TORCH_CHECK(w13.scalar_type() == x.scalar_type() && w2.scalar_type() == x.scalar_type(),
                "expert block: x and weights must have one dtype");
    TORCH_CHECK(weights.size(0) == T && weights.scalar_type() == at::kFloat,
                "router weights must be (T, K) fp32");
  }
};

enum class Pass { forward, forward_without_backward, backward };

// The buffers of a pass. One function makes them for every device, so that meta's bytes are the CPU's.
struct Scratch {
  struct Lane {
    Tensor rows_MD, rows2_MD;  // gathered or produced rows
    Tensor act_MF;             // activation, or its gradient
    Tensor h_M2F;              // pre-activation that no backward will read
    Tensor tail_a, tail_b;     // the last block of rows of both factors of a product
    Tensor scale_M, dscale_M;  // router weights of the rows, and their gradients
    Tensor weight;             // with fp8: room for the larger weight, rounded, and …
    Tensor gradient_M2F;       // … for the gradient of the pre-activation

    // The factors of a product; with fp8 rounded, rows where they lie.
    void round(const Tensor& rows, Fp8Format format, Fp8Scale scale) const {
      if (weight.defined()) fp8_round_out(rows, rows, format, scale);
    }
    Tensor rounded(const Tensor& w, Fp8Scale scale) const {
      if (!weight.defined()) return w;
      const Tensor to = weight.narrow(0, 0, w.numel()).view(w.sizes());
      fp8_round_out(to, w, Fp8Format::e4m3, scale);
      return to;
    }
    Tensor rounded_gradient(const Tensor& rows) const {
      if (!weight.defined()) return rows;
      const Tensor to = gradient_M2F.narrow(0, 0, rows.size(0));
      fp8_round_out(to, rows, Fp8Format::e5m2, Fp8Scale::by_row);
      return to;
    }
  };
  Tensor route_R;  // (R) int32: the route t*K + k in each row, -1 for an empty row
  Tensor sum_TD;   // fp32; the result itself when that is fp32
  std::vector<Lane> lanes;

  static Tensor rows_buffer(const Tensor& x, int64_t rows, int64_t width, Kind kind) {
    KindScope scope(kind);
    return at::empty({rows, width}, x.options());
  }

  static Lane lane(const Tensor& x, const Shape& s, int64_t widest, Pass pass, bool fp8) {
    const auto f32 = x.options().dtype(at::kFloat);
    Lane lane;
    lane.rows_MD = rows_buffer(x, widest, s.D, Kind::capacity_buffers);
    if (pass == Pass::backward) lane.rows2_MD = rows_buffer(x, widest, s.D, Kind::capacity_buffers);
    lane.act_MF = rows_buffer(x, widest, s.F, Kind::activation_experts);
    if (pass == Pass::forward_without_backward) {
      lane.h_M2F = rows_buffer(x, widest, 2 * s.F, Kind::activation_experts);
    }
    if (pass == Pass::backward && x.scalar_type() != at::kFloat) {
      lane.tail_a =
          rows_buffer(x, RowBlocks::kBlock, std::max(s.D, 2 * s.F), Kind::activation_experts).view({-1});
      lane.tail_b =
          rows_buffer(x, RowBlocks::kBlock, std::max(s.D, s.F), Kind::activation_experts).view({-1});
    }
    if (fp8) {
      lane.weight = rows_buffer(x, 2 * s.F, s.D, Kind::activation_experts).view({-1});
      if (pass == Pass::backward)
        lane.gradient_M2F = rows_buffer(x, widest, 2 * s.F, Kind::activation_experts);
    }
    KindScope scope(Kind::routing);
    lane.scale_M = at::empty({widest}, f32);
    if (pass == Pass::backward) lane.dscale_M = at::empty({widest}, f32);
    return lane;
  }

  Scratch(const Tensor& x, const Tensor& result, const Shape& s, int64_t rows, int64_t widest, Pass pass,
          bool fp8) {
    for (int64_t i = lane_count(s.E); i > 0; --i) lanes.push_back(lane(x, s, widest, pass, fp8));
    {
      KindScope scope(Kind::routing);
      route_R = at::empty({rows}, x.options().dtype(at::kInt));
    }
    sum_TD = x.scalar_type() == at::kFloat ? result : at::empty(x.sizes(), x.options().dtype(at::kFloat));
  }
};

// y, H (empty unless kept for backward).
std::tuple<Tensor, Tensor> allocate_results(const Tensor& x, const Shape& s, int64_t rows, bool keep) {
  Tensor y = at::empty_like(x);
  KindScope scope(Kind::activation_experts);
  return {y, keep ? at::empty({rows, 2 * s.F}, x.options()) : at::empty({0}, x.options())};
}

Pass forward_pass(bool keep) { return keep ? Pass::forward : Pass::forward_without_backward; }

void invert_routes(const Tensor& row_TK, const Tensor& route_R) {
  route_R.fill_(-1);
  const int32_t* row = row_TK.const_data_ptr<int32_t>();
  int32_t* route = route_R.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < row_TK.numel(); ++i) {
    if (row[i] >= 0) route[row[i]] = static_cast<int32_t>(i);
  }
}

void gather_rows(const Tensor& source_TD, const int32_t* route, int64_t n, int64_t K, const Tensor& rows_MD) {
  const size_t bytes = source_TD.size(1) * source_TD.element_size();
  const char* from = static_cast<const char*>(source_TD.const_data_ptr());
  char* to = static_cast<char*>(rows_MD.mutable_data_ptr());
  at::parallel_for(0, n, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (route[i] < 0) {
        std::memset(to + i * bytes, 0, bytes);
      } else {
        std::memcpy(to + i * bytes, from + route[i] / K * bytes, bytes);
      }
    }
  });
}

void gather_scales(const float* weights_TK, const int32_t* route, int64_t n, float* scale) {
  for (int64_t i = 0; i < n; ++i) scale[i] = route[i] < 0 ? 0.0f : weights_TK[route[i]];
}

// sum[token of row i] += scale[i] * rows[i]. The rows of one expert belong to different tokens.
template <class T>
void scatter_add(const T* rows, const int32_t* route, const float* scale, int64_t n, int64_t K, int64_t D,
                 float* sum) {
  at::parallel_for(0, n, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (route[i] < 0) continue;
      float* to = sum + route[i] / K * D;
      const Vec s(scale ? scale[i] : 1.0f);
      for (int64_t j = 0; j < D; j += kLanes) {
        const int64_t left = std::min(kLanes, D - j);
        store_float(to + j, load_float(to + j, left) + s * load_float(rows + i * D + j, left), left);
      }
    }
  });
}

// body(expert, first row, rows, lane, turn) for each expert, the widest first: lanes then end together. An
// expert wider than a lane's share is worth all cores.
template <class Body>
void for_experts(const Tensor& offsets, std::vector<Scratch::Lane>& lanes, const Body& body) {
  const int32_t* start = offsets.const_data_ptr<int32_t>();
  const int64_t E = offsets.numel() - 1, L = lanes.size();
  std::vector<int64_t> order(E);
  std::iota(order.begin(), order.end(), 0);
  const auto rows = [&](int64_t e) { return int64_t{start[e + 1]} - start[e]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return rows(a) > rows(b); });
  Turns turns;
  std::atomic<int64_t> next{0};
  const auto run_lane = [&](Scratch::Lane& lane) {
    // the autograd state of the calling thread is not that of other threads
    at::AutoDispatchBelowADInplaceOrView guard;
    for (int64_t i; (i = next.fetch_add(1)) < E;) {
      Turns::Turn turn(turns, i);
      body(order[i], start[order[i]], rows(order[i]), lane, turn);
    }
  };
  if (rows(order[0]) * L > int64_t{start[E]} + int64_t{start[E]} / 2) return run_lane(lanes[0]);
  at::parallel_for(0, L, 1, [&](int64_t begin, int64_t end) {
    for (int64_t lane = begin; lane < end; ++lane) run_lane(lanes[lane]);
  });
}

std::tuple<Tensor, Tensor> forward_cpu(const Tensor& x, const Tensor& weights, const Tensor& row_TK,
                                       const Tensor& offsets, const Tensor& w13, const Tensor& w2,
                                       int64_t rows, int64_t widest, bool keep, bool fp8) {
  const Shape s(x, weights, w13, w2);
  auto [y, h] = allocate_results(x, s, rows, keep);
  Scratch scratch(x, y, s, rows, widest, forward_pass(keep), fp8);
  invert_routes(row_TK, scratch.route_R);
  scratch.sum_TD.zero_();
  const int32_t* route = scratch.route_R.const_data_ptr<int32_t>();
  for_experts(offsets, scratch.lanes,
              [&, &y = y, &h = h](int64_t e, int64_t first, int64_t n, auto& lane, auto& turn) {
                if (n == 0) return;
                Tensor in = lane.rows_MD.narrow(0, 0, n), act = lane.act_MF.narrow(0, 0, n);
                Tensor pre = keep ? h.narrow(0, first, n) : lane.h_M2F.narrow(0, 0, n);
                gather_rows(x, route + first, n, s.K, in);
                lane.round(in, Fp8Format::e4m3, Fp8Scale::by_row);
                multiply_rows(pre, in, lane.rounded(w13[e], Fp8Scale::by_row).t());
                float* scale = lane.scale_M.template mutable_data_ptr<float>();
                gather_scales(weights.const_data_ptr<float>(), route + first, n, scale);
                with_element_type(x.scalar_type(), [&](auto zero) {
                  using scalar_t = decltype(zero);
                  swiglu_rows(pre.const_data_ptr<scalar_t>(), act.mutable_data_ptr<scalar_t>(), n, s.F);
                  lane.round(act, Fp8Format::e4m3, Fp8Scale::by_row);
                  multiply_rows(in, act, lane.rounded(w2[e], Fp8Scale::by_row).t());
                  turn.await();
                  scatter_add(in.const_data_ptr<scalar_t>(), route + first, scale, n, s.K, s.D,
                              scratch.sum_TD.mutable_data_ptr<float>());
                });
              });
  if (!scratch.sum_TD.is_same(y)) y.copy_(scratch.sum_TD);
  return {y, h};
}

std::tuple<Tensor, Tensor> forward_meta(const Tensor& x, const Tensor& weights, const Tensor&, const Tensor&,
                                        const Tensor& w13, const Tensor& w2, int64_t rows, int64_t widest,
                                        bool keep, bool fp8) {
  const Shape s(x, weights, w13, w2);
  auto [y, h] = allocate_results(x, s, rows, keep);
  Scratch scratch(x, y, s, rows, widest, forward_pass(keep), fp8);
  return {y, h};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> allocate_gradients(const Tensor& x, const Tensor& weights,
                                                              const Tensor& w13, const Tensor& w2) {
  Tensor dx = at::empty_like(x), dweights = at::empty_like(weights);
  KindScope scope(Kind::gradients);
  return {dx, dweights, at::empty_like(w13), at::empty_like(w2)};
}

// dx, dweights, dw13, dw2; H is overwritten with its gradient.
std::tuple<Tensor, Tensor, Tensor, Tensor> backward_cpu(const Tensor& dy, const Tensor& x,
                                                        const Tensor& weights, const Tensor& row_TK,
                                                        const Tensor& offsets, const Tensor& w13,
                                                        const Tensor& w2, const Tensor& h, int64_t widest,
                                                        bool fp8) {
  const Shape s(x, weights, w13, w2);
  auto gradients = allocate_gradients(x, weights, w13, w2);
  auto& [dx, dweights, dw13, dw2] = gradients;
  Scratch scratch(x, dx, s, h.size(0), widest, Pass::backward, fp8);
  invert_routes(row_TK, scratch.route_R);
  scratch.sum_TD.zero_();
  dweights.zero_();
  const int32_t* route = scratch.route_R.const_data_ptr<int32_t>();
  for_experts(offsets, scratch.lanes, [&](int64_t e, int64_t first, int64_t n, auto& lane, auto& turn) {
    Tensor dw13_e = dw13[e], dw2_e = dw2[e];
    if (n == 0) {
      dw13_e.zero_();
      dw2_e.zero_();
      return;
    }
    Tensor in = lane.rows_MD.narrow(0, 0, n), out = lane.rows2_MD.narrow(0, 0, n);
    Tensor act = lane.act_MF.narrow(0, 0, n), pre = h.narrow(0, first, n);
    gather_rows(dy, route + first, n, s.K, out);
    lane.round(out, Fp8Format::e5m2, Fp8Scale::by_row);
    multiply_rows(act, out, lane.rounded(w2[e], Fp8Scale::by_column));  // dA'
    float *scale = lane.scale_M.template mutable_data_ptr<float>(),
          *dscale = lane.dscale_M.template mutable_data_ptr<float>();
    gather_scales(weights.const_data_ptr<float>(), route + first, n, scale);
    with_element_type(x.scalar_type(), [&](auto zero) {
      using scalar_t = decltype(zero);
      swiglu_backward_rows(pre.mutable_data_ptr<scalar_t>(), act.mutable_data_ptr<scalar_t>(), scale, dscale,
                           n, s.F);
      if (fp8) gather_rows(dy, route + first, n, s.K, out);
      lane.round(out, Fp8Format::e5m2, Fp8Scale::by_column);
      lane.round(act, Fp8Format::e4m3, Fp8Scale::by_column);
      multiply_transposed(dw2_e, out, act, lane.tail_a, lane.tail_b);
      multiply_rows(out, lane.rounded_gradient(pre), lane.rounded(w13[e], Fp8Scale::by_column));
      gather_rows(x, route + first, n, s.K, in);
      lane.round(pre, Fp8Format::e5m2, Fp8Scale::by_column);
      lane.round(in, Fp8Format::e4m3, Fp8Scale::by_column);
      multiply_transposed(dw13_e, pre, in, lane.tail_a, lane.tail_b);
      turn.await();
      scatter_add(out.const_data_ptr<scalar_t>(), route + first, nullptr, n, s.K, s.D,
                  scratch.sum_TD.mutable_data_ptr<float>());
    });
    float* dweight = dweights.mutable_data_ptr<float>();
    for (int64_t i = 0; i < n; ++i) {
      if (route[first + i] >= 0) dweight[route[first + i]] = dscale[i];
    }
  });
  if (!scratch.sum_TD.is_same(dx)) dx.copy_(scratch.sum_TD);
  return gradients;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_meta(const Tensor&, const Tensor& x,
                                                         const Tensor& weights, const Tensor&, const Tensor&,
                                                         const Tensor& w13, const Tensor& w2, const Tensor& h,
                                                         int64_t widest, bool fp8) {
  const Shape s(x, weights, w13, w2);
  auto gradients = allocate_gradients(x, weights, w13, w2);
  Scratch scratch(x, std::get<0>(gradients), s, h.size(0), widest, Pass::backward, fp8);
  return gradients;
}

struct ExpertBlockFunction : torch::autograd::Function<ExpertBlockFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& weights,
                        const Tensor& row_TK, const Tensor& offsets, const Tensor& w13, const Tensor& w2,
                        int64_t rows, int64_t widest, bool keep, bool fp8) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [y, h] = operator_handle<decltype(forward_cpu)>("moelab::expert_block_forward")
                      .call(x, weights, row_TK, offsets, w13, w2, rows, widest, keep, fp8);
    ctx->save_for_backward({x, weights, row_TK, offsets, w13, w2, h});
    ctx->saved_data["widest"] = widest;
    ctx->saved_data["fp8"] = fp8;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list dy) {
    const auto saved = ctx->get_saved_variables();
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [dx, dweights, dw13, dw2] =
        operator_handle<decltype(backward_cpu)>("moelab::expert_block_backward")
            .call(dy[0].contiguous(), saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6],
                  ctx->saved_data["widest"].toInt(), ctx->saved_data["fp8"].toBool());
    saved[6].unsafeGetTensorImpl()->bump_version();  // H is gone: a second backward must not use it
    return {dx, dweights, Tensor(), Tensor(), dw13, dw2, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def(
      "expert_block_forward(Tensor x, Tensor weights, Tensor row, Tensor offsets, Tensor w13, Tensor w2, "
      "int rows, int widest, bool keep, bool fp8) -> (Tensor, Tensor)");
  m.def(
      "expert_block_backward(Tensor dy, Tensor x, Tensor weights, Tensor row, Tensor offsets, Tensor w13, "
      "Tensor w2, Tensor(a!) h, int widest, bool fp8) -> (Tensor, Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("expert_block_forward", forward_cpu);
  m.impl("expert_block_backward", backward_cpu);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("expert_block_forward", forward_meta);
  m.impl("expert_block_backward", backward_meta);
}

Tensor expert_block(const Tensor& x, const Tensor& weights, const Routes& routes, const Tensor& w13,
                    const Tensor& w2, bool fp8) {
  const bool keep = at::GradMode::is_enabled() && (x.requires_grad() || weights.requires_grad() ||
                                                   w13.requires_grad() || w2.requires_grad());
  return ExpertBlockFunction::apply(x, weights, routes.row_TK, routes.offsets_E1, w13, w2, routes.rows,
                                    routes.widest, keep, fp8);
}

}  // namespace moelab
