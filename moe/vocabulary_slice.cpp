#include "moe/vocabulary_slice.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/dense/embedding.h"
#include "kernels/dense/product.h"
#include "kernels/loss/linear_cross_entropy.h"
#include "kernels/loss/product_slabs.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/operator/differentiable.h"

// Axes: T tokens, R tokens of a chunk, D width, V ids of this rank, N ranks.
namespace moelab {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Elsewhere the host does not see the ids.
void check_ids(const Tensor& ids, int64_t vocabulary, const char* what) {
  if (!ids.is_cpu() || ids.numel() == 0) return;
  const int64_t largest = ids.max().item<int64_t>();
  TORCH_CHECK(largest < vocabulary, what, " ", largest, " is not in 0..", vocabulary - 1);
}

// Ids as rows of this rank's weight, and which of them are not there.
struct OwnIds {
  Tensor rows, elsewhere;
  OwnIds(const Tensor& ids, int64_t V, int64_t rank) : rows(ids.sub(rank * V)) {
    elsewhere = rows.lt(0).bitwise_or_(rows.ge(V));
    rows.masked_fill_(elsewhere, 0);
  }
};

// Every rank's `numbers`, (N, …).
Tensor of_all(Communicator& ranks, const Tensor& numbers) {
  std::vector<int64_t> shape = numbers.sizes().vec();
  shape.insert(shape.begin(), ranks.size());
  const Tensor all = at::empty(shape, numbers.options());
  ranks.gather(numbers, all, std::vector<int64_t>(ranks.size(), numbers.numel()))->wait();
  return all;
}

// The loss and its gradients, computed together.
class Head {
 public:
  Head(const Tensor& x_TD, const Tensor& weight_VD, const Tensor& targets_T, Communicator& ranks,
       const std::optional<Tensor>& gradient_scale, bool needs_gradient)
      : x_(x_TD), weight_(weight_VD), targets_(targets_T), ranks_(ranks) {
    const int64_t T = x_.size(0), V = weight_.size(0);
    check_ids(targets_, V * ranks.size(), "sliced_cross_entropy: target");
    const auto fp64 = x_.options().dtype(at::kDouble);
    const Tensor count = targets_.ge(0).sum().to(at::kDouble);
    const Tensor share = count.reciprocal().masked_fill_(count.eq(0), 0);
    factor_ = gradient_scale ? share.mul(*gradient_scale) : share;
    if (needs_gradient) {
      dx = at::empty_like(x_);
      dw = at::zeros(weight_.sizes(), x_.options().dtype(at::kFloat));
    }
    Tensor sum = at::zeros({}, fp64);
    const int64_t step = linear_cross_entropy_chunk(T, V, sizeof(float), on_cuda(x_));
    for (int64_t first = 0; first < T; first += step) sum.add_(add_chunk(first, std::min(step, T - first)));
    loss = sum.mul_(share).to(at::kFloat);
  }

  Tensor loss;  // () fp32
  Tensor dx;    // (T, D): this rank's term; undefined without gradients
  Tensor dw;    // (V, D) fp32; likewise

 private:
  // The sum of losses of R tokens from `first` on, () fp64.
  Tensor add_chunk(int64_t first, int64_t R) {
    const Tensor x_RD = x_.narrow(0, first, R), targets_R = targets_.narrow(0, first, R);
    const Tensor logits_RV = at::empty({R, weight_.size(0)}, x_.options());
    product_out(logits_RV, x_RD, weight_.t());
    const OwnIds own(targets_R, weight_.size(0), ranks_.rank());
    const Tensor column_R1 = own.rows.unsqueeze(1);
    const Tensor logit =
        logits_RV.gather(1, column_R1).squeeze(1).to(at::kFloat).masked_fill(own.elsewhere, 0);
    const Tensor top = logits_RV.amax(1).to(at::kFloat);
    const Tensor powers_RV = logits_RV.to(at::kFloat).sub_(top.unsqueeze(1)).exp_();
    const Tensor told_N3R = of_all(ranks_, at::stack({top, powers_RV.sum(1), logit})).to(at::kDouble);
    const Tensor tops = told_N3R.select(1, 0), whole_top = tops.amax(0),
                 sum = told_N3R.select(1, 1).mul(tops.sub(whole_top).exp_()).sum(0),
                 target = told_N3R.select(1, 2).sum(0), ignored = targets_R.lt(0);
    if (dx.defined()) {
      const Tensor scale = top.to(at::kDouble).sub_(whole_top).exp_().div_(sum).mul_(factor_);
      powers_RV.mul_(scale.masked_fill_(ignored, 0).to(at::kFloat).unsqueeze(1));
      const Tensor at_target = target.sub(whole_top).exp_().div_(sum).sub_(1).mul_(factor_);
      const Tensor there = at_target.masked_fill_(own.elsewhere, 0).to(at::kFloat);
      there.add_(powers_RV.gather(1, column_R1).squeeze(1).masked_fill_(own.elsewhere.bitwise_not(), 0));
      powers_RV.scatter_(1, column_R1, there.unsqueeze(1));
      add_gradients(powers_RV.to(x_.scalar_type()), x_RD, dx.narrow(0, first, R));
    }
    return sum.log_().add_(whole_top).sub_(target).masked_fill_(ignored, 0).sum();
  }

  void add_gradients(const Tensor& gradient_RV, const Tensor& x_RD, const Tensor& dx_RD) {
    product_out(dx_RD, gradient_RV, weight_);
    if (x_.scalar_type() == at::kFloat) {
      dw.addmm_(gradient_RV.t(), x_RD);
      return;
    }
    const Tensor gradient_VR = gradient_RV.t().contiguous(),
                 slab = product_slab(dw.size(0), dw.size(1), x_.options());
    add_by_slabs(slab, gradient_VR, x_RD,
                 [&](int64_t v, const Tensor& rows) { dw.narrow(0, v, rows.size(0)).add_(rows); });
  }

  const Tensor &x_, &weight_, &targets_;
  Communicator& ranks_;
  Tensor factor_;  // () fp64: of a token's loss in what is differentiated
};

struct SlicedCrossEntropy : Differentiable<SlicedCrossEntropy> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const Tensor& targets,
                        Communicator& ranks, const std::optional<Tensor>& gradient_scale) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const KindScope kind(Kind::loss_head);
    Head head(x, weight, targets, ranks, gradient_scale, true);
    // Not save_for_backward: these are gradients, which no activation policy should pack.
    ctx->saved_data["dx"] = std::move(head.dx);
    ctx->saved_data["dw"] = std::move(head.dw);
    ctx->saved_data["gradient_scale"] = gradient_scale;
    return head.loss;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const KindScope kind(Kind::loss_head);
    TORCH_CHECK(ctx->saved_data.count("dx") == 1,
                "sliced_cross_entropy: a second backward through the same loss");
    Tensor dx = std::move(ctx->saved_data["dx"]).toTensor();
    Tensor dw = std::move(ctx->saved_data["dw"]).toTensor();
    const auto scale = ctx->saved_data["gradient_scale"].toOptional<Tensor>();
    ctx->saved_data.clear();
    const Tensor rest = scale ? gradients[0] / scale->to(gradients[0].scalar_type()) : gradients[0];
    dx.mul_(rest);
    dw = dw.mul_(rest).to(dx.scalar_type());
    return {std::move(dx), std::move(dw), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor sliced_embedding(const Tensor& weight_VD, const Tensor& tokens_BS, Communicator& ranks) {
  const int64_t V = weight_VD.size(0);
  check_ids(tokens_BS, V * ranks.size(), "sliced_embedding: token id");
  const OwnIds own(tokens_BS, V, ranks.rank());
  return moelab::embedding(weight_VD, own.rows).masked_fill_(own.elsewhere.unsqueeze(-1), 0);
}

Tensor sliced_cross_entropy(const Tensor& x_TD, const Tensor& weight_VD, const Tensor& targets_T,
                            Communicator& ranks, const std::optional<Tensor>& gradient_scale) {
  if (at::GradMode::is_enabled() && (x_TD.requires_grad() || weight_VD.requires_grad()))
    return SlicedCrossEntropy::apply(x_TD, weight_VD, targets_T, ranks, gradient_scale);
  const KindScope kind(Kind::loss_head);
  return Head(x_TD, weight_VD, targets_T, ranks, {}, false).loss;
}

Tensor whole_logits(const Tensor& logits, Communicator& ranks) {
  return of_all(ranks, logits.contiguous()).movedim(0, -2).flatten(-2).contiguous();
}

}  // namespace moelab
