#include "kernels/loss/linear_cross_entropy.h"
#include "kernels/memory/ledger.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/linear_cross_entropy.h"
#include "tests/kernels/reference.h"

// Cross entropy together with KL(policy || reference).
namespace moelab {
namespace {

using at::Tensor;
using test::bitwise_equal;
using test::close_to;
using test::no_worse;

using Case = test::LinearCrossEntropyCase;
using Inputs = test::LinearCrossEntropyInput;

constexpr double kWeight = 0.7;

struct Results {
  Tensor objective, cross_entropy, divergence, dx, dw;
};

// With another width than the policy's, and as far from the policy as two random models are.
ReferenceHead other_model(const Case& c, double weight = kWeight) {
  at::manual_seed(99);
  const int64_t width = c.D + 8;
  const Tensor x = at::randn({c.T, width}) * c.logit_rms;
  const Tensor matrix = at::randn({c.V, width}) / std::sqrt(static_cast<double>(width));
  return {x.to(c.dtype), matrix.to(c.dtype), weight};
}

Results ours(const Inputs& in, const ReferenceHead& reference, double gradient_scale = 1) {
  const Tensor x = in.x.clone().requires_grad_(), weight = in.weight.clone().requires_grad_();
  const ComparedLoss got = compared_cross_entropy(
      x, weight, in.targets, reference, at::full({}, gradient_scale, x.options().dtype(at::kDouble)));
  (got.objective * gradient_scale).backward();
  return {got.objective.detach(), got.cross_entropy, got.divergence, x.grad(), weight.grad()};
}

// The definition, with separate operators in the given type.
Results plain(const Inputs& in, const ReferenceHead& reference, at::ScalarType type, double scale = 1) {
  const Tensor x = in.x.to(type, false, true).requires_grad_(),
               weight = in.weight.to(type, false, true).requires_grad_();
  const auto log_probabilities = [&](const Tensor& rows, const Tensor& matrix) {
    const Tensor logits = at::linear(rows, matrix);
    return at::log_softmax(type == at::kDouble ? logits : logits.to(at::kFloat), 1);
  };
  const Tensor log_p = log_probabilities(x, weight);
  const Tensor log_q = log_probabilities(reference.x_TD.to(type), reference.weight_VD.to(type));
  const Tensor counted = in.targets.ne(-1).to(log_p.scalar_type());
  const Tensor rows = (log_p.exp() * (log_p - log_q)).sum(1);
  const Tensor divergence = (rows * counted).sum() / counted.sum().clamp_min(1);
  const Tensor loss = at::nll_loss(log_p, in.targets, {}, at::Reduction::Mean, -1);
  const Tensor objective = loss + reference.weight * divergence;
  (objective * scale).backward();
  return {objective.detach(), loss.detach(), divergence.detach(), x.grad(), weight.grad()};
}

class ComparedCrossEntropyCases : public ::testing::TestWithParam<Case> {};

TEST_P(ComparedCrossEntropyCases, MatchesFloat64) {
  const Case c = GetParam();
  const Inputs in = make_input(c);
  const ReferenceHead reference = other_model(c);
  const Results want = plain(in, reference, at::kDouble), rough = plain(in, reference, c.dtype),
                got = ours(in, reference);
  EXPECT_TRUE(no_worse(got.objective, rough.objective, want.objective));
  // its terms are differences of logarithms around 10, each of them rounded
  const double allowed = std::max(1.1 * test::relative_error(rough.divergence, want.divergence), 4e-6);
  EXPECT_TRUE(close_to(got.divergence, want.divergence, allowed, allowed));
  EXPECT_TRUE(no_worse(got.dx, rough.dx, want.dx));
  EXPECT_TRUE(no_worse(got.dw, rough.dw, want.dw));
  at::NoGradGuard no_grad;
  EXPECT_TRUE(bitwise_equal(linear_cross_entropy(in.x, in.weight, in.targets), got.cross_entropy));
  const ComparedLoss again = compared_cross_entropy(in.x, in.weight, in.targets, reference);
  EXPECT_TRUE(bitwise_equal(again.divergence, got.divergence));
  EXPECT_TRUE(bitwise_equal(again.objective, got.objective));
}

TEST_P(ComparedCrossEntropyCases, MatchesFloat64OnCuda) {
  MOELAB_NEEDS_CUDA();
  const Case c = GetParam();
  const Inputs in = make_input(c);
  const ReferenceHead reference = other_model(c);
  const int64_t terms = test::summed_terms(c);
  const auto there = [](const Tensor& x) { return x.to(c10::Device(c10::kCUDA, 0)); };
  const Results want = plain(in, reference, at::kDouble), rough = plain(in, reference, c.dtype),
                got = ours({there(in.x), there(in.weight), there(in.targets)},
                           {there(reference.x_TD), there(reference.weight_VD), reference.weight});
  EXPECT_TRUE(no_worse(got.objective.cpu(), rough.objective, want.objective, terms));
  const double allowed = std::max(1.1 * test::relative_error(rough.divergence, want.divergence), 4e-6);
  EXPECT_TRUE(close_to(got.divergence.cpu(), want.divergence, allowed, allowed));
  EXPECT_TRUE(no_worse(got.dx.cpu(), rough.dx, want.dx, terms));
  EXPECT_TRUE(no_worse(got.dw.cpu(), rough.dw, want.dw, terms));
}

INSTANTIATE_TEST_SUITE_P(Shapes, ComparedCrossEntropyCases,
                         ::testing::ValuesIn(test::cases_for(test::Use::test,
                                                             test::linear_cross_entropy_cases())),
                         [](const auto& info) { return test::case_name(info); });

// Independent of any formula for the gradient: central differences of the objective along random directions.
TEST(ComparedCrossEntropy, GradientsAreTheObjectivesSlopes) {
  const Case c{.T = 6, .D = 8, .V = 40, .dtype = at::kFloat};
  const Inputs in = make_input(c);
  ReferenceHead reference = other_model(c, 3);
  const Results got = ours(in, reference);
  const auto objective = [&](const Tensor& x, const Tensor& weight) {
    return plain({x, weight, in.targets}, reference, at::kDouble).objective.item<double>();
  };
  for (int i = 0; i < 4; ++i) {
    constexpr double kStep = 1e-5;
    const Tensor dx = at::randn({c.T, c.D}, at::kDouble), dw = at::randn({c.V, c.D}, at::kDouble);
    const Tensor x = in.x.to(at::kDouble), weight = in.weight.to(at::kDouble);
    const double slope =
        (objective(x + kStep * dx, weight + kStep * dw) - objective(x - kStep * dx, weight - kStep * dw)) /
        (2 * kStep);
    const double ours = (got.dx * dx).sum().item<double>() + (got.dw * dw).sum().item<double>();
    EXPECT_NEAR(ours, slope, 1e-5 * (1 + std::abs(slope)));
  }
}

TEST(ComparedCrossEntropy, TheSameModelAddsNothing) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Inputs in = make_input(Case{.T = 395, .D = 40, .V = 50021, .dtype = dtype, .ignored = 0.1});
    const Tensor x = in.x.clone().requires_grad_(), weight = in.weight.clone().requires_grad_();
    const Tensor loss = linear_cross_entropy(x, weight, in.targets);
    loss.backward();
    const Results got = ours(in, {in.x, in.weight, kWeight});
    EXPECT_EQ(got.divergence.item<float>(), 0);
    EXPECT_TRUE(bitwise_equal(got.objective, loss.detach()));
    EXPECT_TRUE(bitwise_equal(got.dx, x.grad()));
    EXPECT_TRUE(bitwise_equal(got.dw, weight.grad()));
  }
}

TEST(ComparedCrossEntropy, WithoutWeightItIsMeasuredAlone) {
  const Case c{.T = 64, .D = 48, .V = 256, .dtype = at::kFloat};
  const Inputs in = make_input(c);
  const Tensor x = in.x.clone().requires_grad_(), weight = in.weight.clone().requires_grad_();
  linear_cross_entropy(x, weight, in.targets).backward();
  const Results got = ours(in, other_model(c, 0));
  EXPECT_GT(got.divergence.item<float>(), 0.1);
  EXPECT_TRUE(bitwise_equal(got.objective, got.cross_entropy));
  EXPECT_TRUE(bitwise_equal(got.dx, x.grad()));
  EXPECT_TRUE(bitwise_equal(got.dw, weight.grad()));
}

TEST(ComparedCrossEntropy, LossScaleKeepsSmallFp16Gradients) {
  const Case c{.T = 300, .D = 24, .V = 9001, .dtype = at::kHalf};
  const Inputs in = make_input(c);
  const ReferenceHead reference = other_model(c);
  constexpr double kScale = 32768;
  const Results want = plain(in, reference, at::kDouble, kScale), got = ours(in, reference, kScale);
  EXPECT_TRUE(close_to(got.dx, want.dx, 4e-3, 1));
  EXPECT_TRUE(close_to(got.dw, want.dw, 4e-3, 1));
}

TEST(ComparedCrossEntropy, IgnoredTokensCountForNothing) {
  const Case c{.T = 40, .D = 16, .V = 130, .dtype = at::kFloat};
  Inputs in = make_input(c);
  in.targets.narrow(0, 10, 5).fill_(-1);
  ReferenceHead reference = other_model(c);
  const Results got = ours(in, reference);
  EXPECT_TRUE(bitwise_equal(got.dx.narrow(0, 10, 5).abs(), at::zeros({5, 16})));
  reference.x_TD = reference.x_TD.clone();
  reference.x_TD.narrow(0, 10, 5).mul_(3);
  EXPECT_TRUE(bitwise_equal(ours(in, reference).divergence, got.divergence));
  in.targets.fill_(-1);
  EXPECT_EQ(ours(in, reference).objective.item<float>(), 0);
}

TEST(ComparedCrossEntropy, RepeatsBitForBitOnOneThreadAndOnTwo) {
  const Case c{.T = 333, .D = 64, .V = 50021, .dtype = at::kBFloat16};
  const Inputs in = make_input(c);
  const ReferenceHead reference = other_model(c);
  for (const int count : {1, 2}) {
    const test::ThreadScope threads(count);
    const Results once = ours(in, reference), again = ours(in, reference);
    EXPECT_TRUE(bitwise_equal(once.objective, again.objective));
    EXPECT_TRUE(bitwise_equal(once.dx, again.dx));
    EXPECT_TRUE(bitwise_equal(once.dw, again.dw));
  }
}

TEST(ComparedCrossEntropy, RefusesAReferenceOfOtherTokensVocabularyOrType) {
  const Case c{.T = 8, .D = 16, .V = 32, .dtype = at::kFloat};
  const Inputs in = make_input(c);
  const auto refuses = [&](const Tensor& x, const Tensor& weight) {
    EXPECT_THROW(compared_cross_entropy(in.x, in.weight, in.targets, {x, weight, 1}), c10::Error);
  };
  refuses(at::zeros({7, 16}), in.weight);
  refuses(in.x, at::zeros({33, 16}));
  refuses(in.x, at::zeros({32, 15}));
  refuses(in.x.to(at::kBFloat16), in.weight.to(at::kBFloat16));
}

int64_t peak(Ledger& ledger, at::Device device, int64_t T, at::ScalarType dtype) {
  const auto options = at::TensorOptions(device).dtype(dtype);
  const Tensor x = at::zeros({T, 64}, options).requires_grad_(),
               weight = at::zeros({20011, 64}, options).requires_grad_();
  const Tensor targets = at::zeros({T}, options.dtype(at::kLong));
  const ReferenceHead reference{at::zeros({T, 64}, options), at::zeros({20011, 64}, options), 1};
  const int64_t before = ledger.allocated();
  ledger.reset_peaks();
  compared_cross_entropy(x, weight, targets, reference);
  return ledger.peak() - before - ledger.by_kind_at_peak()[static_cast<size_t>(Kind::scratch)];
}

TEST(ComparedCrossEntropy, MetaAllocatesWhatTheCpuDoes) {
  install_allocators();
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t T : {1, 100, 1000})
      EXPECT_EQ(peak(cpu_ledger(), at::kCPU, T, dtype), peak(meta_ledger(), at::kMeta, T, dtype));
}

// Neither model's logits exist whole.
TEST(ComparedCrossEntropy, ExtraMemoryIsBounded) {
  install_allocators();
  const auto options = at::TensorOptions(at::kMeta);
  const Tensor x = at::zeros({65536, 64}, options).requires_grad_(), weight = at::zeros({50304, 64}, options);
  const int64_t before = meta_ledger().allocated();
  meta_ledger().reset_peaks();
  compared_cross_entropy(x, weight, at::zeros({65536}, options.dtype(at::kLong)), {x.detach(), weight, 1});
  EXPECT_LE(meta_ledger().peak() - before, 65536 * (64 * 4 + 2 * 8) + (2 * 16 << 20) + (4 << 20));
}

}  // namespace
}  // namespace moelab
