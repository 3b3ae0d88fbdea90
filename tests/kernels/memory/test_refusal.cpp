// Every allocation inside an operator that some limit can refuse: the operator throws LibTorch's
// out-of-memory error or, where a library does without the block, the ledger reports the refusal. Nothing
// leaks, and the operator works again afterwards.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "tests/kernels/memory/allocator_fixture.h"

namespace moelab {
namespace {

using at::Tensor;
using Operation = std::function<void()>;

// Lowers the limit step by step, each time to just below the highest peak reached. Under a constant limit the
// first refusal always falls on a block that would be a new peak, so this reaches each such block.
void refuse_everywhere(const std::string& name, const Operation& run) {
  SCOPED_TRACE(name);
  run();
  Ledger& ledger = cpu_ledger();
  const int64_t base = ledger.allocated();
  ledger.set_limit(0);
  ledger.reset_peaks();
  run();
  int refusals = 0;
  for (int64_t limit = ledger.peak() - 1; limit >= base;) {
    ledger.clear_refused();
    ledger.reset_peaks();
    ledger.set_limit(limit);
    try {
      run();
    } catch (const c10::OutOfMemoryError&) {
      EXPECT_TRUE(ledger.refused());
    }
    EXPECT_EQ(ledger.allocated(), base) << "leak under a limit of " << limit - base;
    EXPECT_LE(ledger.peak(), limit);
    refusals += ledger.refused() ? 1 : 0;  // threads that did not overlap needed less than before
    limit = std::min(ledger.peak(), limit) - 1;
  }
  EXPECT_GE(refusals, 1);
  ledger.set_limit(0);
  EXPECT_NO_THROW(run());
}

class RefusalTest : public WithAllocators, public ::testing::WithParamInterface<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Types, RefusalTest, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.param == at::kFloat ? "fp32" : "bf16"; });

TEST_P(RefusalTest, ThrowsAndLeaksNothing) {
  at::set_num_threads(2);
  const at::TensorOptions options = at::TensorOptions().dtype(GetParam());
  const Tensor x = at::randn({256, 128}, options), w = at::randn({192, 128}, options);
  const Tensor g = at::randn({256, 192}, options), e = at::randn({4, 64, 128}, options);
  const Tensor ew = at::randn({4, 128, 96}, options), q = at::randn({2, 4, 64, 32}, options);
  const Tensor ids = at::randint(256, {512});
  refuse_everywhere("mm", [&] { at::mm(x, w.t()); });
  refuse_everywhere("mm of a weight gradient", [&] { at::mm(g.t(), x); });
  refuse_everywhere("bmm", [&] { at::bmm(e, ew); });
  refuse_everywhere("addmm", [&] { at::addmm(g, x, w.t()); });
  refuse_everywhere("sort", [&] { at::sort(ids, std::optional<bool>(true), 0, false); });
  refuse_everywhere("index_select", [&] { x.index_select(0, ids); });
  refuse_everywhere("softmax", [&] { at::softmax(x, -1, at::kFloat); });
  refuse_everywhere("cat", [&] { at::cat({x, x}).contiguous(); });
  refuse_everywhere("attention, forward and backward", [&] {
    Tensor leaf = q.detach().requires_grad_();
    const Tensor out = at::scaled_dot_product_attention(leaf, leaf, leaf, {}, 0.0, true);
    torch::autograd::backward({out.sum()}, {});
  });
  refuse_everywhere("a layer, forward and backward", [&] {
    Tensor leaf = w.detach().requires_grad_();
    const Tensor hidden = at::silu(at::linear(x, leaf));
    torch::autograd::backward({at::mm(hidden.t(), hidden).sum()}, {});
  });
}

}  // namespace
}  // namespace moelab
