#include "kernels/moe/expert_segments.h"

#include "kernels/vector/blocked_product.h"

#include <ATen/ATen.h>

#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/moe/expert_block_call.h"

// Each segment is a call of expert_block's operators whose tokens are the segment's rows, with one route
// each. Axes: R rows of all segments, D width, E experts, F expert width.
namespace moelab {
namespace {

using at::Tensor;
using expert_block_detail::ExpertCall;

// The row of each token's only route: its own.
Tensor own_rows(int64_t rows, const Tensor& like) {
  const KindScope kind(Kind::routing);
  return at::arange(rows, like.options().dtype(at::kInt)).view({rows, 1});
}

Tensor rows_buffer(const Tensor& like, at::ScalarType type) {
  const KindScope kind(Kind::capacity_buffers);
  return at::empty_like(like, like.options().dtype(type));
}

}  // namespace

at::ScalarType expert_row_type(const Tensor& rows_RD, const Tensor& w2_EDF, bool fp8) {
  const at::ScalarType type = rows_RD.scalar_type();
  const bool blocked =
      !on_cuda(rows_RD) && !fp8 && has_blocked_product(type, rows_RD.size(1), w2_EDF.size(2));
  return blocked ? term_type(type) : type;
}

SegmentOutputs expert_segments_forward(const Tensor& rows_RD, std::span<const Segment> segments,
                                       const Tensor& w13_E2FD, const Tensor& w2_EDF, bool fp8, bool keep) {
  const at::ScalarType type = expert_row_type(rows_RD, w2_EDF, fp8);
  SegmentOutputs outputs{rows_buffer(rows_RD, type), {}};
  int64_t first = 0;
  for (const Segment& segment : segments) {
    const int64_t n = segment.rows;
    const Tensor x = rows_RD.narrow(0, first, n), row = own_rows(n, rows_RD),
                 unweighted = at::ones({n, 1}, rows_RD.options().dtype(at::kFloat));
    const ExpertCall call{x, unweighted,     row, segment.offsets_E1,     w13_E2FD, w2_EDF,
                          n, segment.widest, fp8, type != x.scalar_type()};
    const auto [y, h] = [&] {
      const KindScope kind(Kind::capacity_buffers);
      return expert_block_detail::expert_block_forward(call, keep);
    }();
    outputs.rows_RD.narrow(0, first, n).copy_(y);
    outputs.hidden.push_back(h);
    first += n;
  }
  return outputs;
}

Tensor expert_segments_backward(const Tensor& dy_RD, const Tensor& weights_R, const Tensor& rows_RD,
                                std::span<const Segment> segments, const Tensor& w13_E2FD,
                                const Tensor& w2_EDF, std::span<const Tensor> hidden, bool fp8,
                                const SegmentGradients& take) {
  const at::ScalarType type = expert_row_type(rows_RD, w2_EDF, fp8);
  const bool wide = type != dy_RD.scalar_type();
  const Tensor dx_RD = wide ? rows_buffer(dy_RD, type) : dy_RD;
  int64_t first = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const int64_t n = segments[i].rows;
    const Tensor x = rows_RD.narrow(0, first, n), dy = dy_RD.narrow(0, first, n), row = own_rows(n, rows_RD),
                 weights = weights_R.narrow(0, first, n).view({n, 1});
    const ExpertCall call{x,   weights, row, segments[i].offsets_E1, w13_E2FD, w2_EDF, n, segments[i].widest,
                          fp8, wide};
    const auto [dx, dweights, dw13, dw2] = [&] {
      const KindScope kind(Kind::capacity_buffers);
      return expert_block_detail::expert_block_backward(call, dy, hidden[i]);
    }();
    dx_RD.narrow(0, first, n).copy_(dx);
    weights.copy_(dweights);
    take(static_cast<int64_t>(i), dw13, dw2);
    first += n;
  }
  return dx_RD;
}

}  // namespace moelab
