#include "moe/reducer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "kernels/memory/ledger.h"
#include "kernels/operator/differentiable.h"

namespace moelab {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<int64_t> even_parts(int64_t elements, int64_t ranks) {
  std::vector<int64_t> counts;
  for (int64_t r = 0; r < ranks; ++r) counts.push_back((r + 1) * elements / ranks - r * elements / ranks);
  return counts;
}

// Each rank adds up its part of the elements, then all parts are gathered.
at::Tensor sum_over(Communicator& ranks, const at::Tensor& term) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor mine = term.contiguous();
  const std::vector<int64_t> counts = even_parts(mine.numel(), ranks.size());
  at::Tensor part;
  {
    const KindScope kind(Kind::communication);
    part = at::zeros({counts[ranks.rank()]}, mine.options().dtype(at::kFloat));
    ranks.reduce(mine, part, counts)->wait();
    part = part.to(mine.scalar_type());
  }
  at::Tensor sum = at::empty_like(mine);
  ranks.gather(part, sum, counts)->wait();
  return sum;
}

struct RanksOfCall : torch::CustomClassHolder {
  explicit RanksOfCall(Communicator& ranks) : ranks(ranks) {}
  Communicator& ranks;
};

struct EnterFunction : Differentiable<EnterFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, Communicator& ranks) {
    ctx->saved_data["ranks"] = c10::IValue::make_capsule(c10::make_intrusive<RanksOfCall>(ranks));
    return x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list dx) {
    const auto call =
        c10::static_intrusive_pointer_cast<RanksOfCall>(ctx->saved_data.at("ranks").toCapsule());
    return {sum_over(call->ranks, dx[0]), at::Tensor()};
  }
};

struct LeaveFunction : Differentiable<LeaveFunction> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& term, Communicator& ranks) {
    return sum_over(ranks, term);
  }
  static variable_list backward(AutogradContext*, variable_list dy) { return {dy[0], at::Tensor()}; }
};

}  // namespace

at::Tensor Reducer::enter(const at::Tensor& x) const { return ranks_ ? EnterFunction::apply(x, *ranks_) : x; }

at::Tensor Reducer::leave(const at::Tensor& term) const {
  return ranks_ ? LeaveFunction::apply(term, *ranks_) : term;
}

}  // namespace moelab
