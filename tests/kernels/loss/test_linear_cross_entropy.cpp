#include <tuple>

#include "kernels/loss/linear_cross_entropy.h"
#include "kernels/memory/ledger.h"
#include "kernels/operator/op_handle.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/linear_cross_entropy.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

using at::Tensor;
using test::bitwise_equal;
using test::close_to;
using test::no_worse;
using test::ThreadScope;

using Case = test::LinearCrossEntropyCase;
using Inputs = test::LinearCrossEntropyInput;

struct Results {
  Tensor loss, dx, dw;
};

template <class F>
Results differentiate(const Inputs& in, at::ScalarType dtype, const F& f, double scale = 1) {
  const Tensor x = in.x.to(dtype, false, true).requires_grad_();
  const Tensor weight = in.weight.to(dtype, false, true).requires_grad_();
  const Tensor loss = f(x, weight, in.targets);
  (loss * scale).backward();
  return {loss.detach(), x.grad(), weight.grad()};
}

// With separate operators: the float64 reference, or the plain formulation in the inputs' own type.
Tensor separate(const Tensor& x, const Tensor& weight, const Tensor& targets) {
  const Tensor logits = at::linear(x, weight);
  const Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  return at::cross_entropy_loss(wide, targets, {}, at::Reduction::Mean, -1, 0.0);
}

Results reference(const Inputs& in, double scale = 1) {
  return differentiate(in, at::kDouble, separate, scale);
}

Results ours(const Inputs& in, double scale = 1, double gradient_scale = 1) {
  const auto fused = [&](const Tensor& x, const Tensor& weight, const Tensor& targets) {
    return linear_cross_entropy(x, weight, targets,
                                at::full({}, gradient_scale, x.options().dtype(at::kDouble)));
  };
  return differentiate(in, in.x.scalar_type(), fused, scale);
}

class LinearCrossEntropyCases : public ::testing::TestWithParam<Case> {
  void SetUp() override { MOELAB_NEEDS(GetParam().device); }
};

TEST_P(LinearCrossEntropyCases, MatchesFloat64) {
  const Case c = GetParam();
  const Inputs in = make_input(c);
  const Results want = reference(in), plain = differentiate(in, c.dtype, separate), got = ours(in);
  const int64_t terms = c.device.is_cuda() ? test::summed_terms(c) : 1;
  ASSERT_EQ(got.loss.scalar_type(), at::kFloat);
  ASSERT_EQ(got.dx.scalar_type(), c.dtype);
  ASSERT_EQ(got.dw.scalar_type(), c.dtype);
  EXPECT_TRUE(no_worse(got.loss, plain.loss, want.loss, terms));
  EXPECT_TRUE(no_worse(got.dx, plain.dx, want.dx, terms));
  EXPECT_TRUE(no_worse(got.dw, plain.dw, want.dw, terms));
  at::NoGradGuard no_grad;
  EXPECT_TRUE(bitwise_equal(linear_cross_entropy(in.x, in.weight, in.targets), got.loss));
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearCrossEntropyCases,
                         ::testing::ValuesIn(test::on_every_device(
                             test::cases_for(test::Use::test, test::linear_cross_entropy_cases()))),
                         [](const auto& info) { return test::case_name(info); });

TEST(LinearCrossEntropy, TheCasesHaveOneOfSeveralChunks) {
  for (const Case& c : test::linear_cross_entropy_cases()) {
    if (std::string(c.name) != "several_chunks") continue;
    EXPECT_LT(2 * linear_cross_entropy_chunk(c.T, c.V, c.dtype == at::kFloat ? 4 : 2), c.T);
  }
}

// Sixteen chunks in two slabs. Each chunk after the first adds a 600th of the first one's part to dW, less
// than half of its last place in bf16: if it were rounded after each chunk, the sum would stay what the first
// chunk made it.
TEST(LinearCrossEntropy, AddsBf16WeightGradientsInFloat32) {
  constexpr int64_t V = 50021, D = 48, kChunks = 16;
  const int64_t R = linear_cross_entropy_chunk(1 << 20, V, 2), T = kChunks * R;
  ASSERT_EQ(linear_cross_entropy_chunk(T, V, 2), R);
  const Inputs in{at::full({T, D}, 1.0 / 600, at::kBFloat16), at::zeros({V, D}, at::kBFloat16),
                  at::zeros({T}, at::kLong)};
  in.x.narrow(0, 0, R).fill_(1);
  const Results got = ours(in);
  const double mean = in.x.to(at::kDouble).mean().item<double>();
  ASSERT_GT(mean, 1.02 / kChunks);
  for (const int64_t id : {int64_t{0}, int64_t{1}, V - 1}) {
    const double want = mean * (1.0 / V - (id == 0 ? 1 : 0));
    EXPECT_TRUE(close_to(got.dw[id], at::full({D}, want, at::kDouble), 5e-3, 5e-3)) << id;
  }
}

// Every product and sum is exact, so that the only error is the rounding: once, to nearest even, of the sum
// over the chunks times the incoming gradient.
void expect_one_rounding(c10::Device device, at::ScalarType dtype) {
  constexpr int64_t V = 1 << 20, R = 16, kChunks = 2, D = 16;
  ASSERT_EQ(linear_cross_entropy_chunk(R * kChunks, V, 2, device.is_cuda(), D), R);
  at::manual_seed(7);
  const int64_t bound = dtype == at::kHalf ? 2048 : 256;  // above it not every integer can be represented
  const Tensor of_chunk = at::randint(-bound, bound, {kChunks, D});  // the one counted token of each chunk
  const Tensor x = at::zeros({kChunks, R, D}), targets = at::full({kChunks, R}, -1, at::kLong);
  x.select(1, 0).copy_(of_chunk);
  targets.select(1, 0).fill_(0);
  const Inputs in{x.view({-1, D}).to(device, dtype),
                  at::zeros({V, D}, x.options().device(device).dtype(dtype)), targets.view({-1}).to(device)};
  constexpr double kScale = 1 << 10, kGradient = 3 * kScale;
  const Tensor dw = ours(in, kGradient, kScale).dw.cpu();
  const Tensor exact = of_chunk.sum(0) * (kGradient / (kChunks * V));  // p is 1 / V for every id
  EXPECT_TRUE(bitwise_equal(dw.narrow(0, 1, V - 1), exact.to(dtype).expand({V - 1, D}).contiguous()));
  EXPECT_FALSE(bitwise_equal(exact.to(dtype).to(at::kFloat), exact));
}

TEST(LinearCrossEntropy, RoundsTheWeightGradientOnce) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) expect_one_rounding(at::kCPU, dtype);
}

TEST(LinearCrossEntropyCuda, RoundsTheWeightGradientOnce) {
  MOELAB_NEEDS_CUDA();
  for (const auto dtype : {at::kBFloat16, at::kHalf}) expect_one_rounding(c10::Device(c10::kCUDA, 0), dtype);
}

// The sums of the last rows lie elsewhere; those of the others are rounded where they are, in pieces.
TEST(LinearCrossEntropyCuda, RoundsSumsInTheirOwnMemory) {
  MOELAB_NEEDS_CUDA();
  using Scale = void(Tensor, const Tensor&, const Tensor&);
  static const auto scale = operator_handle<Scale>("moelab::linear_cross_entropy_scale_");
  const c10::Device device(c10::kCUDA, 0);
  constexpr int64_t D = 100;
  for (const int64_t V : {1, 2, 7, 4095}) {
    const Tensor sums = at::randn({V, D}, device), factor = at::full({}, 0.7, sums.options());
    const Tensor gradient = at::empty({V, D}, sums.options().dtype(at::kBFloat16));
    gradient.view({-1})
        .narrow(0, 0, V / 2 * 2 * D)
        .view(at::kFloat)
        .copy_(sums.narrow(0, 0, V / 2).flatten());
    scale.call(gradient, sums.narrow(0, V / 2, V - V / 2).contiguous(), factor);
    EXPECT_TRUE(bitwise_equal(gradient.cpu(), (sums * factor).to(at::kBFloat16).cpu())) << V;
  }
}

TEST(LinearCrossEntropy, ScaledLossScalesGradients) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Inputs in = make_input(Case{.T = 200, .D = 32, .V = 50021, .dtype = dtype});
    const Results got = ours(in, 0.37), want = reference(in, 0.37);
    const double tolerance = dtype == at::kFloat ? 1e-5 : 8e-3;
    EXPECT_TRUE(close_to(got.dx, want.dx, tolerance, 1));
    EXPECT_TRUE(close_to(got.dw, want.dw, tolerance, 1));
  }
}

// A probability of 1/V over T tokens is below fp16's smallest number; computed at the loss scale it is not
// lost.
TEST(LinearCrossEntropy, LossScaleKeepsSmallFp16Gradients) {
  for (const int64_t V : {9001, 50021}) {  // one chunk, and several
    Inputs in = make_input(Case{.T = 600, .D = 24, .V = V, .dtype = at::kHalf});
    in.targets.remainder_(100);  // the other ids get only the small gradients
    constexpr double kScale = 32768;
    const Results want = reference(in, kScale), got = ours(in, kScale, kScale), late = ours(in, kScale);
    const auto rare = [](const Results& r) { return r.dw.narrow(0, 100, r.dw.size(0) - 100); };
    EXPECT_TRUE(close_to(got.dx, want.dx, 4e-3, 1));
    EXPECT_TRUE(close_to(got.dw, want.dw, 4e-3, 1));
    EXPECT_TRUE(close_to(rare(got), rare(want), 4e-3, 1));
    EXPECT_FALSE(close_to(rare(late), rare(want), 4e-3, 1)) << "scaling afterwards is too late";
    const Results other = ours(in, kScale / 4, kScale), quarter = reference(in, kScale / 4);
    EXPECT_TRUE(close_to(other.dx, quarter.dx, 4e-3, 1));
    EXPECT_TRUE(close_to(other.dw, quarter.dw, 4e-3, 1));
    EXPECT_TRUE(bitwise_equal(got.loss, late.loss));
  }
}

// As in a captured step: the same tensor in every call.
TEST(LinearCrossEntropy, TakesTheLossScaleFromWhereItLies) {
  const Inputs in = make_input(Case{.T = 60, .D = 24, .V = 901, .dtype = at::kHalf});
  const Tensor scale = at::full({}, 1.0, at::kDouble);
  const auto at_scale = [&](const Tensor& x, const Tensor& weight, const Tensor& targets) {
    return linear_cross_entropy(x, weight, targets, scale);
  };
  for (const double value : {32768.0, 4.0}) {
    scale.fill_(value);
    const Results got = differentiate(in, at::kHalf, at_scale, value), want = ours(in, value, value);
    EXPECT_TRUE(bitwise_equal(got.dx, want.dx) && bitwise_equal(got.dw, want.dw)) << value;
  }
  EXPECT_FALSE(bitwise_equal(ours(in, 4, 4).dx, ours(in, 4, 32768).dx));
}

TEST(LinearCrossEntropy, NothingToAverageIsZero) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t T : {0, 20}) {
      const Inputs in{at::randn({T, 24}).to(dtype), at::randn({99, 24}).to(dtype),
                      at::full({T}, -1, at::kLong)};
      const Results got = ours(in);
      EXPECT_EQ(got.loss.item<float>(), 0);
      EXPECT_TRUE(bitwise_equal(got.dx.abs(), at::zeros({T, 24}, dtype)));
      EXPECT_TRUE(bitwise_equal(got.dw.abs(), at::zeros({99, 24}, dtype)));
    }
  }
}

TEST(LinearCrossEntropy, IgnoredTokensGetNoGradient) {
  Inputs in = make_input(Case{.T = 40, .D = 16, .V = 130, .dtype = at::kFloat});
  in.targets.narrow(0, 10, 5).fill_(-1);
  const Results got = ours(in);
  EXPECT_TRUE(bitwise_equal(got.dx.narrow(0, 10, 5).abs(), at::zeros({5, 16})));
  EXPECT_GT(got.dx[9].norm().item<float>(), 0);
}

TEST(LinearCrossEntropy, OnlyTheGradientsAskedFor) {
  const Inputs in = make_input(Case{.T = 30, .D = 16, .V = 130, .dtype = at::kFloat});
  const Results both = ours(in);
  const Tensor x = in.x.clone().requires_grad_(), weight = in.weight.clone().requires_grad_();
  linear_cross_entropy(x, in.weight, in.targets).backward();
  linear_cross_entropy(in.x, weight, in.targets).backward();
  EXPECT_TRUE(bitwise_equal(x.grad(), both.dx));
  EXPECT_TRUE(bitwise_equal(weight.grad(), both.dw));
  EXPECT_FALSE(linear_cross_entropy(in.x, in.weight, in.targets).requires_grad());
}

TEST(LinearCrossEntropy, SecondBackwardThrows) {
  const Inputs in = make_input(Case{.T = 8, .D = 16, .V = 32, .dtype = at::kFloat});
  const Tensor x = in.x.clone().requires_grad_();
  const Tensor loss = linear_cross_entropy(x, in.weight, in.targets);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(loss.backward(), c10::Error);
}

// With the same number of threads every bit repeats. With another number the products may differ, because the
// library splits long sums among threads.
TEST(LinearCrossEntropy, RepeatsBitForBitOnOneThreadAndOnTwo) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t V : {777, 50021}) {
      const Inputs in = make_input(Case{.T = 333, .D = 64, .V = V, .dtype = dtype});
      for (const int count : {1, 2}) {
        const ThreadScope threads(count);
        const Results once = ours(in), again = ours(in);
        EXPECT_TRUE(bitwise_equal(once.loss, again.loss));
        EXPECT_TRUE(bitwise_equal(once.dx, again.dx));
        EXPECT_TRUE(bitwise_equal(once.dw, again.dw));
      }
    }
  }
}

TEST(LinearCrossEntropy, NanComesThrough) {
  const Inputs in = make_input(Case{.T = 20, .D = 16, .V = 1100, .dtype = at::kFloat});
  in.weight[700].fill_(std::nan(""));
  EXPECT_TRUE(std::isnan(ours(in).loss.item<float>()));
}

// Wherever such a logit is among the others, as on the CPU.
TEST(LinearCrossEntropyCuda, ALogitOfMinusInfinityHasNoProbability) {
  MOELAB_NEEDS_CUDA();
  const c10::Device gpu(c10::kCUDA, 0);
  const Tensor x = at::ones({20, 16}), weight = at::full({1100, 16}, 0.01),
               targets = at::full({20}, 700, at::kLong);
  weight.narrow(0, 0, 40).fill_(-std::numeric_limits<double>::infinity());
  for (const Tensor& loss : {linear_cross_entropy(x, weight, targets),
                             linear_cross_entropy(x.to(gpu), weight.to(gpu), targets.to(gpu))})
    EXPECT_NEAR(loss.item<double>(), std::log(1060.0), 1e-5);
}

TEST(LinearCrossEntropy, RefusesWrongInputs) {
  const Inputs in = make_input(Case{.T = 8, .D = 16, .V = 32, .dtype = at::kFloat});
  const auto refuses = [](const Tensor& x, const Tensor& weight, const Tensor& targets) {
    EXPECT_THROW(linear_cross_entropy(x, weight, targets), c10::Error);
  };
  refuses(in.x, in.weight, at::full({8}, 32, at::kLong));
  refuses(in.x, in.weight, at::full({8}, -2, at::kLong));
  refuses(in.x, in.weight, in.targets.to(at::kInt));
  refuses(in.x, in.weight, in.targets.narrow(0, 0, 7));
  refuses(in.x, in.weight.narrow(1, 0, 8), in.targets);
  refuses(in.x, in.weight.to(at::kBFloat16), in.targets);
  refuses(in.x.to(at::kDouble), in.weight.to(at::kDouble), in.targets);
  const Tensor x = in.x.clone().requires_grad_();
  for (const Tensor& scale : {at::ones({}), at::ones({1}, at::kDouble),
                              at::ones({}, at::TensorOptions(at::kMeta).dtype(at::kDouble))})
    EXPECT_THROW(linear_cross_entropy(x, in.weight, in.targets, scale), c10::Error);
}

// The tolerances above must catch each of these mistakes.
TEST(LinearCrossEntropy, BrokenVariantsFail) {
  const Inputs in = make_input(Case{.T = 131, .D = 64, .V = 513, .dtype = at::kBFloat16, .ignored = 0.1});
  const Results want = reference(in), plain = differentiate(in, at::kBFloat16, separate);
  const auto broken = [&](const Tensor& dx, const Tensor& dw) {
    EXPECT_FALSE(no_worse(dx.to(at::kBFloat16), plain.dx, want.dx));
    EXPECT_FALSE(no_worse(dw.to(at::kBFloat16), plain.dw, want.dw));
  };
  broken(at::zeros_like(want.dx), at::zeros_like(want.dw));
  // Ignored targets left in the mean's denominator.
  const double counted = in.targets.ge(0).sum().item<double>() / 131;
  broken(want.dx * counted, want.dw * counted);
  // One token without its target's term.
  const Tensor x = in.x.to(at::kDouble), weight = in.weight.to(at::kDouble);
  const int64_t token = in.targets.ge(0).nonzero()[5].item<int64_t>(),
                target = in.targets[token].item<int64_t>();
  Tensor dx = want.dx.clone(), dw = want.dw.clone();
  dx[token] += weight[target] / (131 * counted);
  dw[target] += x[token] / (131 * counted);
  broken(dx, dw);
  // The last tokens forgotten.
  dx = want.dx.clone();
  dx.narrow(0, 128, 3).zero_();
  EXPECT_FALSE(no_worse(dx.to(at::kBFloat16), plain.dx, want.dx));
}

TEST(LinearCrossEntropy, ChunksFitSixteenMiBAndAreEven) {
  for (const int64_t T : {0, 1, 15, 16, 17, 83, 84, 4096, 100003}) {
    for (const int64_t V : {1, 256, 50021, 50304, 262144, 1000003}) {
      const int64_t chunk = linear_cross_entropy_chunk(T, V, 4);
      EXPECT_TRUE(chunk <= 16 || chunk * V * 4 <= 16 << 20) << T << " " << V;
      EXPECT_TRUE(chunk == T || (chunk >= 16 && chunk % 16 == 0 && chunk < T)) << T << " " << V;
    }
  }
  EXPECT_EQ(linear_cross_entropy_chunk(4096, 50304, 4), 80);
}

// Bytes of forward and backward, without scratch: the loss head's at the peak, the peak, what is held between
// the two passes, and what is left afterwards (the gradients).
struct Usage {
  int64_t head_at_peak, peak, held, left;
};

Usage measure(Ledger& ledger, at::Device device, int64_t T, int64_t D, int64_t V, at::ScalarType dtype) {
  const auto options = at::TensorOptions(device).dtype(dtype);
  const Tensor x = at::zeros({T, D}, options).requires_grad_(),
               weight = at::zeros({V, D}, options).requires_grad_();
  const Tensor targets = at::zeros({T}, options.dtype(at::kLong));
  const int64_t before = ledger.allocated();
  ledger.reset_peaks();
  Tensor loss = linear_cross_entropy(x, weight, targets);
  const int64_t held = ledger.allocated() - before;
  loss.backward();
  loss.reset();
  const auto kinds = ledger.by_kind_at_peak();
  return {kinds[static_cast<size_t>(Kind::loss_head)],
          ledger.peak() - before - kinds[static_cast<size_t>(Kind::scratch)], held,
          ledger.allocated() - before};
}

TEST(LinearCrossEntropy, MetaAllocatesWhatTheCpuDoes) {
  install_allocators();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t T : {1, 100, 1000}) {
      const Usage cpu = measure(cpu_ledger(), at::kCPU, T, 64, 20011, dtype);
      const Usage meta = measure(meta_ledger(), at::kMeta, T, 64, 20011, dtype);
      EXPECT_EQ(cpu.head_at_peak, meta.head_at_peak);
      EXPECT_EQ(cpu.peak, meta.peak);
      EXPECT_EQ(cpu.held, meta.held);
      EXPECT_EQ(cpu.left, meta.left);
    }
  }
}

// Forward and backward take dW's sum in fp32, and at most 64 MiB for everything else.
TEST(LinearCrossEntropy, ExtraMemoryIsBounded) {
  install_allocators();
  const int64_t T = 4096, D = 768, V = 50304;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Usage meta = measure(meta_ledger(), at::kMeta, T, D, V, dtype);
    const int64_t element = dtype == at::kFloat ? 4 : 2;
    EXPECT_LE(meta.peak, V * D * 4 + (64 << 20)) << dtype;
    EXPECT_LE(meta.held, V * D * 4 + T * D * element + 1024) << dtype;
    EXPECT_LE(meta.left, (V + T) * D * element + 1024) << dtype;
  }
}

}  // namespace
}  // namespace moelab
