#pragma once
#include "kernels/moe/blocked_expert.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/dense/fp8.h"
#include "kernels/dense/product.h"
#include "kernels/memory/ledger.h"
#include "kernels/moe/expert_block_call.h"
#include "kernels/moe/row_products.h"

// The expert block's buffers.
// Axes: T tokens, D width, K routes a token, E experts, F expert width, R rows, M rows of the widest expert,
// L lanes.
namespace moelab::expert_block_detail {

using at::Tensor;
constexpr int64_t kMaxLanes = 4;  // each lane has its own scratch

// Number of lanes. On few cores most experts run concurrently, one core each, and no core waits inside a
// product. On many cores experts run one after another on all cores, in the first lane's buffers.
inline int64_t lane_count(int64_t experts) {
  const int64_t threads = at::get_num_threads();
  return threads <= std::min(kMaxLanes, experts) ? threads : 1;
}

struct Shape {
  int64_t T, D, K, E, F;
  explicit Shape(const ExpertCall& call) : Shape(call.x_TD, call.weights_TK, call.w13_E2FD, call.w2_EDF) {}
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

// backward_recomputing: the pre-activation was not kept.
enum class Pass { forward, forward_without_backward, backward, backward_recomputing };
inline bool is_backward(Pass pass) { return pass == Pass::backward || pass == Pass::backward_recomputing; }
inline bool keeps_hidden(Pass pass) { return pass == Pass::forward || pass == Pass::backward; }

// Whether an expert is computed by blocked products.
inline bool is_blocked(const Tensor& x, const Shape& s, bool fp8) {
  return !fp8 && has_blocked_product(x.scalar_type(), s.D, s.F);
}

// The buffers of a pass. One function makes them for every device, so that meta counts the CPU's bytes.
struct Scratch {
  struct Lane {
    Tensor rows_MD, rows2_MD;  // gathered or produced rows
    Tensor act_MF;             // activation, or its gradient
    Tensor h_M2F;              // pre-activation that is not kept
    Tensor tail_a, tail_b;     // the last block of rows of a product's two factors
    Tensor scale_M, dscale_M;  // router weights of the rows; their gradients, of blocked products (panels, M)
    Tensor weight;             // with fp8: room for the larger weight, rounded
    Tensor gradient_M2F;       // with fp8: room for the gradient of the pre-activation
    Tensor across, workers;    // of blocked products
    Tensor product;            // of product_out

    bool fp8 = false;

    // A product's factors, rounded with fp8; rows are rounded in place.
    void round(const Tensor& rows, Fp8Format format, Fp8Scale scale) const {
      if (fp8) fp8_round_out(rows, rows, format, scale);
    }
    Tensor rounded(const Tensor& w, Fp8Scale scale) const {
      if (!fp8) return w;
      const Tensor to = weight.narrow(0, 0, w.numel()).view(w.sizes());
      fp8_round_out(to, w, Fp8Format::e4m3, scale);
      return to;
    }
    Tensor rounded_gradient(const Tensor& rows) const {
      if (!fp8) return rows;
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
  // Rows in the type that products multiply: fp32 where the CPU has no 16-bit products.
  static Tensor terms_buffer(const Tensor& x, int64_t rows, int64_t width, Kind kind) {
    KindScope scope(kind);
    return at::empty({rows, width}, x.options().dtype(term_type(x.scalar_type())));
  }

  static Lane lane(const Tensor& x, const Shape& s, int64_t widest, Pass pass, bool fp8) {
    const bool backward = is_backward(pass);
    Lane lane;
    lane.fp8 = fp8;
    lane.rows_MD = rows_buffer(x, widest, s.D, Kind::capacity_buffers);
    if (backward) lane.rows2_MD = rows_buffer(x, widest, s.D, Kind::capacity_buffers);
    lane.act_MF = rows_buffer(x, widest, s.F, Kind::activation_experts);
    if (!keeps_hidden(pass)) lane.h_M2F = rows_buffer(x, widest, 2 * s.F, Kind::activation_experts);
    if (backward && x.scalar_type() != at::kFloat) {
      lane.tail_a =
          rows_buffer(x, RowBlocks::kBlock, std::max(s.D, 2 * s.F), Kind::activation_experts).view({-1});
      lane.tail_b =
          rows_buffer(x, RowBlocks::kBlock, std::max(s.D, s.F), Kind::activation_experts).view({-1});
    }
    if (fp8) {
      lane.weight = rows_buffer(x, 2 * s.F, s.D, Kind::activation_experts).view({-1});
      if (backward) lane.gradient_M2F = rows_buffer(x, widest, 2 * s.F, Kind::activation_experts);
    }
    if (multiplies_as_fp32(x)) {
      int64_t bytes = std::max(product_bytes(widest, s.D, 2 * s.F), product_bytes(widest, s.F, s.D));
      if (backward) {
        bytes = std::max({bytes, product_bytes(widest, 2 * s.F, s.D), product_bytes(widest, s.D, s.F),
                          product_bytes(s.D, widest, s.F), product_bytes(2 * s.F, widest, s.D)});
      }
      const KindScope scope(Kind::activation_experts);
      lane.product = at::empty({bytes}, x.options().dtype(at::kByte));
    }
    make_scales(lane, x, widest, backward ? 1 : 0);
    return lane;
  }

  static Lane blocked_lane(const Tensor& x, const Shape& s, int64_t widest, Pass pass, Tensor workers) {
    const bool backward = is_backward(pass);
    const int64_t rows = round_up(widest, kRowBlock);
    Lane lane;
    lane.rows_MD = terms_buffer(x, rows, s.D, Kind::capacity_buffers);
    if (backward) lane.across = terms_buffer(x, rows + kTile, s.D, Kind::capacity_buffers);
    lane.act_MF = terms_buffer(x, rows, s.F, Kind::activation_experts);
    if (!keeps_hidden(pass)) lane.h_M2F = rows_buffer(x, widest, 2 * s.F, Kind::activation_experts);
    lane.workers = std::move(workers);
    make_scales(lane, x, widest, backward ? at::divup(s.F, kPanel) : 0);
    return lane;
  }

  static void make_scales(Lane& lane, const Tensor& x, int64_t widest, int64_t gradients) {
    KindScope scope(Kind::routing);
    const auto f32 = x.options().dtype(at::kFloat);
    lane.scale_M = at::empty({widest}, f32);
    if (gradients > 0) lane.dscale_M = at::empty({gradients, widest}, f32);
  }

  // Buffers for all cores; the first lane's slice holds all of them.
  static Tensor make_workers(const Tensor& x, const Shape& s) {
    Tensor workers;
    with_element_type(x.scalar_type(), [&](auto zero) {
      workers = BlockedProducts<decltype(zero)>::make_workers(x, s.D, std::max(s.D, s.F));
    });
    return workers;
  }

  Scratch(const ExpertCall& call, const Shape& s, Pass pass, const Tensor& result) {
    const Tensor& x = call.x_TD;
    const int64_t count = lane_count(s.E);
    const bool blocked = is_blocked(x, s, call.fp8);
    const Tensor workers = blocked ? make_workers(x, s) : Tensor();
    for (int64_t i = 0; i < count; ++i) {
      lanes.push_back(blocked ? blocked_lane(x, s, call.widest, pass, workers.slice(0, i))
                              : lane(x, s, call.widest, pass, call.fp8));
    }
    {
      KindScope scope(Kind::routing);
      route_R = at::empty({call.rows}, x.options().dtype(at::kInt));
    }
    sum_TD =
        result.scalar_type() == at::kFloat ? result : at::empty(x.sizes(), x.options().dtype(at::kFloat));
  }
};

}  // namespace moelab::expert_block_detail
