#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>

#include "train/program/qualify/agreement.h"
#include "train/program/qualify/try_variants.h"

// Planted variants of an operator that doubles a tensor: a right one is kept, a wrong or slow one is not.
namespace moelab {
namespace {

using at::Tensor;
using Doubling = Tensor(const Tensor&);

Tensor plain(const Tensor& x) { return x * 2; }
Tensor right(const Tensor& x) { return x + x; }
Tensor wrong(const Tensor& x) { return x * 2.02; }
Tensor wrong_in_one_place(const Tensor& x) {
  Tensor y = x * 2;
  y.view(-1)[3] += 1;
  return y;
}
Tensor zeros(const Tensor& x) { return at::zeros_like(x); }
Tensor nan(const Tensor& x) { return at::full_like(x, std::nan("")); }
Tensor shorter(const Tensor& x) { return plain(x).narrow(0, 0, 5); }
Tensor greedy(const Tensor&) { TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory"); }

class TryVariants : public ::testing::Test {
 protected:
  // Inputs that a call does not change; the reference is the plain variant's result, unless `formula`.
  OperatorProbe probe(bool formula, bool timed = false) {
    return {&op_, "some inputs",
            [=, this]() -> Trial {
              at::manual_seed(3);
              const Tensor x = at::randn({500}).to(at::kBFloat16);
              Trial trial{[] {}, [=, this]() -> Results { return {op_(x)}; }, {}};
              if (formula) trial.reference = [=]() -> Results { return {x.to(at::kFloat) * 2}; };
              return trial;
            },
            timed};
  }
  std::string failure_of(const std::string& variant) {
    const std::vector<OperatorProbe> probes = {probe(true), probe(false)};
    return try_variant(op_, op_.index_of(variant), probes, [](const auto&) { return 0.0; }).failure;
  }

  Variants<Doubling> op_{"doubling",
                         {{"plain", &plain},
                          {"wrong", &wrong},
                          {"wrong_in_one_place", &wrong_in_one_place},
                          {"zeros", &zeros},
                          {"nan", &nan},
                          {"shorter", &shorter},
                          {"greedy", &greedy},
                          {"right", &right}}};
};

TEST_F(TryVariants, RightOnesAgreeAndOthersSayWhereTheyDoNot) {
  EXPECT_EQ(failure_of("plain"), "");
  EXPECT_EQ(failure_of("right"), "");
  for (const char* const variant : {"wrong", "wrong_in_one_place", "zeros", "nan", "shorter"})
    EXPECT_TRUE(failure_of(variant).starts_with("wrong with some inputs, result 1: ")) << variant;
  EXPECT_EQ(failure_of("greedy"), "no memory to try some inputs");
}

TEST_F(TryVariants, WithoutAFormulaThePlainOneIsTheReference) {
  const std::vector<OperatorProbe> probes = {probe(false)};
  const auto fails = [&](const char* variant) {
    return !try_variant(op_, op_.index_of(variant), probes, [](const auto&) { return 0.0; }).failure.empty();
  };
  EXPECT_TRUE(fails("wrong"));
  EXPECT_FALSE(fails("right"));
  EXPECT_EQ(op_.variants()[op_.chosen()], "right") << "what was chosen before";
}

// The timer is told which variant runs by the operator itself.
KernelChoice chosen_by_times(VariedOperator& op, const OperatorProbe& probe,
                             const std::map<std::string, double>& times) {
  std::vector<TriedVariant> tried;
  for (const auto& [variant, milliseconds] : times) {
    tried.push_back(
        try_variant(op, op.index_of(variant), std::vector<OperatorProbe>{probe}, [&](const auto& f) {
          f();
          return times.at(op.variants()[op.chosen()]);
        }));
  }
  return fastest_variants(tried);
}

TEST_F(TryVariants, TheFastestOfThoseThatAgreeIsKept) {
  const OperatorProbe timed = probe(true, true);
  EXPECT_EQ(chosen_by_times(op_, timed, {{"plain", 2}, {"right", 1}}).at("doubling"), "right");
  EXPECT_EQ(chosen_by_times(op_, timed, {{"plain", 1}, {"right", 2}}).at("doubling"), "plain")
      << "a slow one";
  EXPECT_EQ(chosen_by_times(op_, timed, {{"plain", 2}, {"right", 1}, {"wrong", 0.1}}).at("doubling"),
            "right");
  EXPECT_EQ(chosen_by_times(op_, timed, {{"plain", 1}, {"right", 1}}).at("doubling"), "right") << "as fast";
  EXPECT_EQ(chosen_by_times(op_, timed, {{"nan", 1}, {"zeros", 1}}).at("doubling"), "plain") << "none agrees";
}

TEST_F(TryVariants, WhatIsNotToBeTimedIsNot) {
  const std::vector<OperatorProbe> probes = {probe(true, false)};
  EXPECT_EQ(try_variant(op_, 0, probes, [](const auto&) { return 5.0; }).milliseconds, 0);
}

TEST_F(TryVariants, AChoiceIsUsedByName) {
  use_kernels({{"doubling", "zeros"}});
  EXPECT_EQ(op_(at::ones({1})).item<float>(), 0);
  EXPECT_EQ(kernels_in_use().at("doubling"), "zeros");
  use_kernels({{"doubling", "of another build"}});
  EXPECT_EQ(kernels_in_use().at("doubling"), "plain");
  use_kernels({{"doubling", "right"}});
  use_kernels({});
  EXPECT_EQ(kernels_in_use().at("doubling"), "plain");
}

TEST(Agreement, RoundingAgreesAndMoreDoesNot) {
  at::manual_seed(5);
  const Tensor x = at::randn({10000});
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const Tensor rounded = x.to(type);
    EXPECT_EQ(disagreement(rounded, x, 1), "") << type;
    const double step = type == at::kHalf ? 0x1p-10 : 0x1p-7;
    EXPECT_EQ(disagreement((rounded.to(at::kFloat) * (1 + step / 2)).to(type), x, 1), "")
        << "one more rounding";
    EXPECT_NE(disagreement((x * (1 + 3 * step)).to(type), x, 1), "") << type;
  }
  EXPECT_EQ(disagreement(x + 1e-7, x, 4), "");
  EXPECT_NE(disagreement(x + 1e-5, x, 4), "");
  EXPECT_EQ(disagreement(at::zeros({4}), at::zeros({4}), 1), "");
  EXPECT_NE(disagreement(at::full({4}, 1e-30), at::zeros({4}), 1), "");
  EXPECT_NE(disagreement(at::full({4}, INFINITY), at::ones({4}), 1), "");
}

}  // namespace
}  // namespace moelab
