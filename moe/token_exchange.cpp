#include "moe/token_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/memory/ledger.h"
#include "kernels/moe/expert_segments.h"
#include "kernels/moe/routed_rows.h"
#include "kernels/operator/differentiable.h"

// "Home": where a row's token is. "Owner": where its expert is.
// Axes: T tokens, D width, K routes a token, E experts, R rows at home, O rows at an owner.
namespace moelab {
namespace {

using at::Tensor;
using Counts = std::vector<int64_t>;

int64_t rows_in(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// Elements of these numbers of rows (R, D) or (R).
Counts elements_of(Counts counts, const Tensor& rows) {
  for (int64_t& count : counts) count *= rows.dim() == 2 ? rows.size(1) : 1;
  return counts;
}

// Where the rows of one layer and micro-batch go: the same in backward as in forward.
struct Plan : torch::CustomClassHolder {
  Communicator& ranks;
  const TokenExchange::Gradients& gradients;
  int64_t rows = 0;               // R
  Counts to, from;                // rows for the experts of each rank; rows from each rank for experts here
  std::vector<Segment> segments;  // `from`, by expert

  Tensor w13_E2FD, w2_EDF;  // the weights as they were given, for `gradients`
  // Until forward has them: the rows under way, from `home` to `owner`.
  Tensor home_RD, owner_OD;
  std::unique_ptr<Transfer> transfer;

  Plan(Communicator& ranks, const TokenExchange::Gradients& gradients) : ranks(ranks), gradients(gradients) {}

  std::unique_ptr<Transfer> to_owners(const Tensor& home, const Tensor& owner) const {
    return ranks.exchange(sent(home), elements_of(to, home), owner, elements_of(from, home));
  }
  std::unique_ptr<Transfer> to_homes(const Tensor& owner, const Tensor& home) const {
    return ranks.exchange(owner, elements_of(from, home), sent(home), elements_of(to, home));
  }

 private:
  // Without the rows at the end that belong to no expert.
  Tensor sent(const Tensor& home) const { return home.narrow(0, 0, rows_in(to)); }
};

// Every rank has as many sequences as this one, and an expert takes equally many rows of each.
void plan_even(Plan& plan, const Routes& routes, int64_t owned) {
  const int64_t N = plan.ranks.size();
  plan.to = plan.from = Counts(N, routes.rows / N);
  const Segment segment{routes.offsets_E1.narrow(0, 0, owned + 1), routes.rows / N, routes.widest};
  plan.segments.assign(N, segment);
}

// Rows of each expert. On meta as if the router had no favourites.
Counts rows_of_experts(const Routes& routes, int64_t E) {
  Counts rows(E);
  if (routes.offsets_E1.is_meta()) {
    for (int64_t e = 0; e < E; ++e) rows[e] = (e + 1) * routes.rows / E - e * routes.rows / E;
    return rows;
  }
  const Tensor offsets = routes.offsets_E1.cpu();
  const int32_t* start = offsets.const_data_ptr<int32_t>();
  for (int64_t e = 0; e < E; ++e) rows[e] = start[e + 1] - start[e];
  return rows;
}

Segment segment_of(const int64_t* rows, int64_t owned, c10::Device device) {
  std::vector<int32_t> offsets(owned + 1);
  std::partial_sum(rows, rows + owned, offsets.begin() + 1);
  const KindScope kind(Kind::routing);
  return {at::tensor(c10::ArrayRef<int32_t>(offsets), at::kInt).to(device), offsets.back(),
          *std::max_element(rows, rows + owned)};
}

void plan_ragged(Plan& plan, const Routes& routes, int64_t owned) {
  const int64_t N = plan.ranks.size(), E = N * owned, first = plan.ranks.rank() * owned;
  const Counts mine = rows_of_experts(routes, E), all = plan.ranks.agree(mine);
  for (int64_t r = 0; r < N; ++r) {
    const auto begin = mine.begin() + r * owned;
    plan.to.push_back(std::accumulate(begin, begin + owned, int64_t{0}));
    plan.segments.push_back(segment_of(all.data() + r * E + first, owned, routes.offsets_E1.device()));
    plan.from.push_back(plan.segments.back().rows);
  }
}

Tensor rows_buffer(int64_t rows, const Tensor& like_TD, at::ScalarType type) {
  const KindScope kind(Kind::capacity_buffers);
  return at::empty({rows, like_TD.size(1)}, like_TD.options().dtype(type));
}

// Room for rows at home: what was sent from there has been received, so its buffer serves if the type does.
Tensor reused(const Tensor& home_RD, at::ScalarType type) {
  return home_RD.scalar_type() == type ? home_RD : rows_buffer(home_RD.size(0), home_RD, type);
}

Tensor gathered(const Tensor& source_TD, const Routes& routes) {
  const KindScope kind(Kind::capacity_buffers);
  return gather_routed(source_TD, routes);
}

Routes routes_of(const Tensor& row_TK, const Tensor& offsets_E1, const Plan& plan) {
  return {row_TK, offsets_E1, {}, plan.rows};
}

struct ExchangedExperts : Differentiable<ExchangedExperts> {
  using PlanPointer = c10::intrusive_ptr<Plan>;

  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& weights,
                        const Tensor& row_TK, const Tensor& offsets, const Tensor& w13, const Tensor& w2,
                        const PlanPointer& plan, bool keep, bool fp8) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Routes routes = routes_of(row_TK, offsets, *plan);
    Tensor home = std::move(plan->home_RD);
    const Tensor owner = std::move(plan->owner_OD);
    std::exchange(plan->transfer, nullptr)->wait();
    SegmentOutputs outputs = expert_segments_forward(owner, plan->segments, w13, w2, fp8, keep);
    home = reused(home, outputs.rows_RD.scalar_type());
    plan->to_homes(outputs.rows_RD, home)->wait();
    outputs.rows_RD.reset();
    const Tensor y = at::empty_like(x);
    combine_routed(home, weights, routes, y);
    torch::autograd::variable_list saved{weights, row_TK, offsets, w13, w2, owner};
    saved.insert(saved.end(), outputs.hidden.begin(), outputs.hidden.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["plan"] = c10::IValue::make_capsule(plan);
    ctx->saved_data["fp8"] = fp8;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &weights = saved[0], &w13 = saved[3], &w2 = saved[4];
    const auto plan = c10::static_intrusive_pointer_cast<Plan>(ctx->saved_data["plan"].toCapsule());
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Routes routes = routes_of(saved[1], saved[2], *plan);
    const Tensor dy = gradients[0].contiguous();
    Tensor home = gathered(dy, routes), owner = rows_buffer(rows_in(plan->from), dy, dy.scalar_type());
    Tensor home_weights, owner_weights;
    {
      const KindScope kind(Kind::routing);
      home_weights = gather_routed_weights(weights, routes);
      owner_weights = at::empty({rows_in(plan->from)}, home_weights.options());
    }
    const auto rows_out = plan->to_owners(home, owner),
               weights_out = plan->to_owners(home_weights, owner_weights);
    rows_out->wait();
    weights_out->wait();

    const std::span<const Tensor> hidden(saved.begin() + 6, saved.end());
    const auto take = [&](int64_t rank, const Tensor& dw13, const Tensor& dw2) {
      if (plan->w13_E2FD.requires_grad()) plan->gradients(plan->w13_E2FD, rank, dw13);
      if (plan->w2_EDF.requires_grad()) plan->gradients(plan->w2_EDF, rank, dw2);
    };
    Tensor dx_rows = expert_segments_backward(owner, owner_weights, saved[5], plan->segments, w13, w2, hidden,
                                              ctx->saved_data["fp8"].toBool(), take);
    // gone: a second backward must not use it
    for (const Tensor& h : hidden) h.unsafeGetTensorImpl()->bump_version();
    owner.reset();

    home = reused(home, dx_rows.scalar_type());
    const auto rows_back = plan->to_homes(dx_rows, home),
               weights_back = plan->to_homes(owner_weights, home_weights);
    rows_back->wait();
    weights_back->wait();
    dx_rows.reset();
    const Tensor dx = at::empty_like(dy), dweights = values_of_routes(home_weights, routes);
    combine_routed(home, {}, routes, dx);
    return {dx, dweights, {}, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

TokenExchange::Rows TokenExchange::send(const Tensor& x, const Routes& routes) const {
  const int64_t N = ranks_.size(), owned = (routes.offsets_E1.numel() - 1) / N;
  TORCH_CHECK(owned * N == routes.offsets_E1.numel() - 1, "exchange: routes to ",
              routes.offsets_E1.numel() - 1, " experts on ", N, " ranks");
  auto plan = c10::make_intrusive<Plan>(ranks_, gradients_);
  plan->rows = routes.rows;
  if (routes.even) {
    plan_even(*plan, routes, owned);
  } else {
    plan_ragged(*plan, routes, owned);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  plan->home_RD = gathered(x, routes);
  plan->owner_OD = rows_buffer(rows_in(plan->from), x, x.scalar_type());
  plan->transfer = plan->to_owners(plan->home_RD, plan->owner_OD);
  return plan;
}

Tensor TokenExchange::experts(const Rows& rows, const Tensor& x, const Tensor& weights, const Routes& routes,
                              const Tensor& w13, const Tensor& w2, bool fp8, bool keep_hidden) const {
  TORCH_CHECK(w13.size(0) * ranks_.size() == routes.offsets_E1.numel() - 1, "exchange: ", w13.size(0),
              " experts here and routes to ", routes.offsets_E1.numel() - 1, " on ", ranks_.size(), " ranks");
  const auto plan = c10::static_intrusive_pointer_cast<Plan>(rows);
  TORCH_CHECK(plan->transfer, "exchange: these rows were used before");
  const bool keep =
      keep_hidden && at::GradMode::is_enabled() &&
      (x.requires_grad() || weights.requires_grad() || w13.requires_grad() || w2.requires_grad());
  plan->w13_E2FD = w13;
  plan->w2_EDF = w2;
  return ExchangedExperts::apply(x, weights, routes.row_TK, routes.offsets_E1, w13, w2, plan, keep, fp8);
}

}  // namespace moelab
