#include <gtest/gtest.h>

#include "kernels/memory/ledger.h"
#include "kernels/meta/aten_meta.h"
#include "kernels/moe/expert_block.h"
#include "tests/cuda_device.h"
#include "tests/kernels/moe/moe_reference.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

using test::MoeCase;
using test::MoeInput;

struct Results {
  at::Tensor y, dx, dweights, dw13, dw2;
  std::vector<std::pair<const char*, at::Tensor>> named() const {
    return {{"y", y}, {"dx", dx}, {"dweights", dweights}, {"dw13", dw13}, {"dw2", dw2}};
  }
};

template <class Forward>
Results run(const MoeInput& in, at::ScalarType dtype, at::ScalarType weights_dtype, const Forward& forward) {
  const auto leaf = [](const at::Tensor& t, at::ScalarType to) {
    return t.detach().clone().to(to).requires_grad_();
  };
  at::Tensor x = leaf(in.x, dtype), weights = leaf(in.weights, weights_dtype), w13 = leaf(in.w13, dtype),
             w2 = leaf(in.w2, dtype);
  at::Tensor y = forward(x, weights, w13, w2);
  y.backward(in.dy.to(dtype));
  return {y.detach(), x.grad(), weights.grad(), w13.grad(), w2.grad()};
}

Results run_block(const MoeInput& in, const Routes& routes) {
  return run(in, in.x.scalar_type(), at::kFloat, [&](auto& x, auto& weights, auto& w13, auto& w2) {
    return expert_block(x, weights, routes, w13, w2);
  });
}

Results run_reference(const MoeInput& in) {
  return run(in, at::kDouble, at::kDouble, [&](auto& x, auto& weights, auto& w13, auto& w2) {
    return test::reference_experts(x, weights, in.ids, in.routes.row_TK, w13, w2);
  });
}

class ExpertBlock : public ::testing::TestWithParam<MoeCase> {
  void SetUp() override { MOELAB_NEEDS(GetParam().device); }
};

TEST_P(ExpertBlock, AgreesWithFloat64InFp32) {
  const MoeInput in = test::make_input(GetParam());
  const Results got = run_block(in, in.routes), want = run_reference(in);
  const int64_t terms = GetParam().D + GetParam().F + GetParam().tokens();
  for (size_t i = 0; i < 5; ++i) {
    const at::Tensor reference = want.named()[i].second;
    // The errors of a handful of elements do not average out: three times the rms, so nine times the
    // variance.
    const int64_t spread = reference.numel() < 8 ? 9 : 1;
    EXPECT_TRUE(test::close_to(got.named()[i].second, reference,
                               test::tolerance(at::kFloat, spread * terms, static_cast<double>(8 * spread))))
        << got.named()[i].first;
  }
}

TEST_P(ExpertBlock, RecomputesItsHiddenStateToTheSameBits) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool fp8 : {false, true}) {
      const MoeInput in = test::make_input(GetParam(), type);
      const auto with = [&](bool keep_hidden) {
        return run(in, type, at::kFloat, [&](auto& x, auto& weights, auto& w13, auto& w2) {
          return expert_block(x, weights, in.routes, w13, w2, fp8, keep_hidden);
        });
      };
      const Results kept = with(true), recomputed = with(false);
      for (size_t i = 0; i < 5; ++i) {
        EXPECT_TRUE(test::bitwise_equal(recomputed.named()[i].second, kept.named()[i].second))
            << kept.named()[i].first << " " << type << " " << fp8;
      }
    }
  }
}

TEST_P(ExpertBlock, AgreesWithFloat64InBf16) {
  const MoeInput in = test::make_input(GetParam(), at::kBFloat16);
  const Results got = run_block(in, in.routes), want = run_reference(in);
  for (size_t i = 0; i < 5; ++i) {
    const at::Tensor reference = want.named()[i].second;
    // pre-activation, activation (or dA) and result are rounded, and the factors of a product twice; the
    // errors of a handful of elements do not average out, and a gradient of mostly empty experts has its rms
    // in few elements
    const auto tolerance = test::tolerance(at::kBFloat16, 1, reference.numel() < 16 ? 25 : 4);
    const double filled = reference.ne(0).to(at::kDouble).mean().item<double>();
    EXPECT_TRUE(test::close_to(got.named()[i].second, reference, tolerance.relative_norm,
                               2 * tolerance.worst_in_rms / std::sqrt(std::max(filled, 1e-3))))
        << got.named()[i].first;
  }
}

// The layer in bf16, one route at a time, as plain operators compute it.
TEST_P(ExpertBlock, IsNotWorseThanTheLoopInBf16) {
  if (GetParam().tokens() < 16) return;  // too few roundings to average out
  const MoeInput in = test::make_input(GetParam(), at::kBFloat16);
  const Results got = run_block(in, in.routes), want = run_reference(in);
  const Results loop =
      run(in, at::kBFloat16, at::kBFloat16, [&](auto& x, auto& weights, auto& w13, auto& w2) {
        return test::reference_experts(x, weights, in.ids, in.routes.row_TK, w13, w2);
      });
  for (size_t i = 0; i < 5; ++i) {
    const auto [name, reference] = want.named()[i];
    EXPECT_LE(test::relative_error(got.named()[i].second, reference),
              test::relative_error(loop.named()[i].second, reference))
        << name;
  }
}

class ExpertBlockRounding : public ::testing::TestWithParam<c10::Device> {
  void SetUp() override { MOELAB_NEEDS(GetParam()); }
};

// The reference rounds the kept pre-activation and the results to bf16 and computes all else in float64: no
// operator that keeps bf16 has smaller errors, and in dw2 they exceed 3e-3. Ours also has bf16 between the
// products.
TEST_P(ExpertBlockRounding, IsLittleMoreThanThatOfWhatIsKept) {
  MoeCase c{"", 1, 512, 128, 4, 2, 256, 0};
  c.device = GetParam();
  const MoeInput in = test::make_input(c, at::kBFloat16);
  const auto in_float64 = [&](const auto& kept) {
    return run(in, at::kDouble, at::kDouble, [&](auto& x, auto& weights, auto& w13, auto& w2) {
      return test::reference_experts(x, weights, in.ids, in.routes.row_TK, w13, w2, kept);
    });
  };
  const Results want = in_float64(nullptr), got = run_block(in, in.routes),
                least = in_float64([](const at::Tensor&h) {
                  return h + (h.detach().to(at::kBFloat16).to(at::kDouble) - h.detach());
                });
  for (size_t i = 0; i < 5; ++i) {
    const auto [name, reference] = want.named()[i];
    const at::Tensor mine = got.named()[i].second;
    const double floor = test::relative_error(least.named()[i].second.to(mine.scalar_type()), reference);
    EXPECT_LE(test::relative_error(mine, reference), 1.7 * floor) << name;
    if (name == std::string("dw2")) {
      EXPECT_GT(floor, 3e-3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ExpertBlockRounding,
                         ::testing::Values(c10::Device(c10::kCPU), c10::Device(c10::kCUDA, 0)),
                         [](const auto& info) { return info.param.is_cuda() ? "Cuda" : "Cpu"; });

TEST_P(ExpertBlock, AgreesWithFloat64InFp16) {
  const MoeInput in = test::make_input(GetParam(), at::kHalf);
  const Results got = run_block(in, in.routes), want = run_reference(in);
  for (size_t i = 0; i < 5; ++i) {
    const at::Tensor reference = want.named()[i].second;
    const auto tolerance = test::tolerance(at::kHalf, 1, reference.numel() < 16 ? 16 : 4);
    const double filled = reference.ne(0).to(at::kDouble).mean().item<double>();
    EXPECT_TRUE(test::close_to(got.named()[i].second, reference, tolerance.relative_norm,
                               3 * tolerance.worst_in_rms / std::sqrt(std::max(filled, 1e-3))))
        << got.named()[i].first;
  }
}

TEST_P(ExpertBlock, ThreadsChangeNoBit) {
  const MoeInput in = test::make_input(GetParam(), at::kBFloat16);
  const auto with_threads = [&](int threads) {
    test::ThreadScope scope(threads);
    return run_block(in, in.routes);
  };
  const Results one = with_threads(1), two = with_threads(2);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(test::bitwise_equal(one.named()[i].second, two.named()[i].second)) << one.named()[i].first;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ExpertBlock,
                         ::testing::ValuesIn(test::on_every_device(test::cases_for(test::Use::test,
                                                                                   test::moe_cases()))),
                         [](const auto& info) { return test::short_name(info); });

// The comparison detects wrong experts, a missing weight, a dropped route and zeros.
TEST(ExpertBlockMutants, AreCaught) {
  const MoeCase c = test::moe_cases()[0];
  const MoeInput in = test::make_input(c);
  const Results want = run_reference(in);
  const auto tolerance = test::tolerance(at::kFloat, c.D + c.F + c.tokens(), 8);
  MoeInput swapped = in;
  swapped.w13 = in.w13.index_select(0, at::tensor({1, 0, 2, 3}));
  EXPECT_FALSE(test::close_to(run_block(swapped, in.routes).y, want.y, tolerance));
  MoeInput unweighted = in;
  unweighted.weights = at::ones_like(in.weights);
  EXPECT_FALSE(test::close_to(run_block(unweighted, in.routes).y, want.y, tolerance));
  Routes missing = in.routes;
  missing.row_TK = in.routes.row_TK.clone();
  missing.row_TK[5][1] = -1;
  EXPECT_FALSE(test::close_to(run_block(in, missing).y, want.y, tolerance));
  EXPECT_FALSE(test::close_to(at::zeros_like(want.y), want.y, tolerance));
}

TEST(ExpertBlock, CapacityWithoutDropsAgreesWithDropless) {
  const MoeCase c{"", 2, 32, 48, 4, 2, 64, 4};
  const MoeInput in = test::make_input(c);
  const Results padded = run_block(in, in.routes), ragged = run_block(in, dropless_routes(in.ids, c.E));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(test::close_to(padded.named()[i].second, ragged.named()[i].second,
                               test::tolerance(at::kFloat, c.D + c.F + c.tokens(), 8)));
  }
}

TEST(ExpertBlock, WithoutGradientsIsTheSameToTheBit) {
  const MoeInput in = test::make_input(test::moe_cases()[8], at::kBFloat16);
  at::NoGradGuard no_grad;
  const at::Tensor y = expert_block(in.x, in.weights, in.routes, in.w13, in.w2);
  at::AutoGradMode grad(true);
  EXPECT_TRUE(test::bitwise_equal(y, run_block(in, in.routes).y));
}

TEST(ExpertBlock, SecondBackwardIsRefused) {
  const MoeInput in = test::make_input(test::moe_cases()[0]);
  at::Tensor x = in.x.clone().requires_grad_();
  at::Tensor y = expert_block(x, in.weights, in.routes, in.w13, in.w2).sum();
  y.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(y.backward(), c10::Error);
}

TEST(ExpertBlock, RoutesOfOtherShapesOrTypesAreRefused) {
  const MoeInput in = test::make_input(test::moe_cases()[0]);
  const auto run = [&](const auto& change) {
    Routes routes = in.routes;
    change(routes);
    return expert_block(in.x, in.weights, routes, in.w13, in.w2);
  };
  EXPECT_NO_THROW(run([](Routes&) {}));
  EXPECT_THROW(run([](Routes& r) { r.row_TK = r.row_TK.to(at::kLong); }), c10::Error);
  EXPECT_THROW(run([](Routes& r) { r.row_TK = r.row_TK.slice(0, 1); }), c10::Error);
  EXPECT_THROW(run([](Routes& r) { r.offsets_E1 = r.offsets_E1.to(at::kLong); }), c10::Error);
  EXPECT_THROW(run([](Routes& r) { r.offsets_E1 = r.offsets_E1.slice(0, 1); }), c10::Error);
}

// Bytes that a forward leaves allocated, without result and inputs.
int64_t held_bytes(const MoeCase& c, at::ScalarType dtype) {
  install_allocators();
  const MoeInput in = test::make_input(c, dtype);
  at::Tensor x = in.x.clone().requires_grad_();
  const int64_t before = cpu_ledger().allocated();
  const at::Tensor y = expert_block(x, in.weights, in.routes, in.w13, in.w2);
  return cpu_ledger().allocated() - before - static_cast<int64_t>(y.nbytes());
}

TEST(ExpertBlockMemory, KeepsThePreActivationAndNothingElse) {
  // x (2d) and rows and weights (8k a token) are the caller's; the operator itself keeps H, 4kF a token in
  // bf16
  const MoeCase dropless{"", 2, 64, 32, 4, 2, 48, 0}, capacity{"", 2, 64, 32, 4, 2, 48, 1.25};
  EXPECT_EQ(held_bytes(dropless, at::kBFloat16), dropless.tokens() * 4 * dropless.K * dropless.F);
  EXPECT_EQ(held_bytes(capacity, at::kBFloat16), 1.25 * capacity.tokens() * 4 * capacity.K * capacity.F);
  const MoeInput in = test::make_input(dropless);
  EXPECT_LE(in.routes.row_TK.nbytes() + in.weights.nbytes(), 12u * dropless.K * dropless.tokens());
}

TEST(ExpertBlockMemory, MetaAllocatesWhatTheCpuAllocates) {
  install_allocators();
  install_meta_kernels();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const MoeCase& c : test::cases_for(test::Use::test, test::moe_cases())) {
      const auto peak_on = [&](c10::Device device, Ledger& ledger) {
        MoeInput in = test::make_input(c, dtype);
        Routes routes = in.routes;
        for (at::Tensor* t :
             {&in.x, &in.weights, &in.w13, &in.w2, &in.dy, &routes.row_TK, &routes.offsets_E1}) {
          *t = t->to(device);
        }
        for (at::Tensor* t : {&in.x, &in.weights, &in.w13, &in.w2}) t->requires_grad_();
        const int64_t before = ledger.allocated();
        ledger.reset_peaks();
        expert_block(in.x, in.weights, routes, in.w13, in.w2).backward(in.dy);
        const KindBytes at_peak = ledger.by_kind_at_peak();
        return ledger.peak() - before - at_peak[static_cast<size_t>(Kind::scratch)];
      };
      EXPECT_EQ(peak_on(at::kMeta, meta_ledger()), peak_on(at::kCPU, cpu_ledger())) << c.name << " " << dtype;
    }
  }
}

TEST(DenseBlock, AgreesWithOneExpertForAllTokens) {
  const MoeCase c{"", 2, 16, 24, 1, 1, 40, 0};
  MoeInput in = test::make_input(c);
  in.weights = at::ones_like(in.weights);
  const Results want = run_reference(in);
  const Results got = run(in, at::kFloat, at::kFloat, [](auto& x, auto& weights, auto& w13, auto& w2) {
    return dense_block(x, w13[0], w2[0]) + 0 * weights.sum();
  });
  for (const size_t i : {0, 1, 3, 4}) {
    EXPECT_TRUE(test::close_to(got.named()[i].second, want.named()[i].second,
                               test::tolerance(at::kFloat, c.D + c.F + c.tokens(), 8)));
  }
}

}  // namespace
}  // namespace moelab
