#include "kernels/cpu/word_product.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/reference.h"

// Axes: M rows, K terms, N columns.
namespace moelab {
namespace {

using Product = void (*)(int64_t, int64_t, int64_t, bool, const at::BFloat16*, int64_t, const int32_t*,
                         float*);

constexpr int64_t kGap = 6;     // between rows of the left operand
constexpr float kMark = -77.0;  // around the result

struct Input {
  at::Tensor a, b, c;  // (M, K), (K, N) bf16; (M, N) fp32, what is added to
};

Input make_input(int64_t M, int64_t N, int64_t K) {
  at::manual_seed(M * 1000003 + N * 1009 + K);
  return {at::randn({M, K}).to(at::kBFloat16), at::randn({K, N}).to(at::kBFloat16), at::randn({M, N})};
}

// Whatever lies beside the operands is NaN, whatever lies beside the result is to stay as it is.
at::Tensor multiply(Product product, const Input& in, bool add) {
  const int64_t M = in.a.size(0), K = in.a.size(1), N = in.b.size(1);
  const at::Tensor rows =
      at::full({M + 1, K + kGap}, std::numeric_limits<double>::quiet_NaN(), at::kBFloat16);
  rows.narrow(0, 0, M).narrow(1, 0, K).copy_(in.a);
  const at::Tensor words =
      at::full({K / 2 + 1, N, 2}, std::numeric_limits<double>::quiet_NaN(), at::kBFloat16);
  words.narrow(0, 0, K / 2).copy_(in.b.view({K / 2, 2, N}).transpose(1, 2));
  const at::Tensor c = at::full({M + 2, N}, kMark), result = c.narrow(0, 1, M);
  if (add) result.copy_(in.c);
  product(M, N, K, add, rows.const_data_ptr<at::BFloat16>(), K + kGap,
          static_cast<const int32_t*>(words.const_data_ptr()), result.mutable_data_ptr<float>());
  EXPECT_TRUE(c[0].eq(kMark).all().item<bool>() && c[M + 1].eq(kMark).all().item<bool>());
  return result;
}

at::Tensor reference(const Input& in, bool add) {
  const at::Tensor product = in.a.to(at::kDouble).mm(in.b.to(at::kDouble));
  return add ? product + in.c : product;
}

class WordProduct : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
#ifdef MOELAB_NATIVE_BF16
      product_ = detail::multiply_words_avx512;
#else
      GTEST_SKIP() << "built for a CPU without AVX512-BF16";
#endif
    } else {
      if (!has_word_product()) GTEST_SKIP() << "a CPU with neither AMX nor AVX512-BF16";
      product_ = multiply_words;
    }
  }
  void TearDown() override { release_words(); }

  Product product_ = nullptr;
};

TEST_P(WordProduct, AgreesWithFloat64) {
  for (const int64_t M : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 16, 64, 127}) {
    for (const int64_t N : {32, 64, 96, 128, 160}) {
      for (const int64_t K : {32, 96, 512}) {
        const Input in = make_input(M, N, K);
        for (const bool add : {false, true}) {
          EXPECT_TRUE(test::close_to(multiply(product_, in, add), reference(in, add),
                                     test::tolerance(at::kFloat, K, 1)))
              << M << " " << N << " " << K << " " << add;
        }
      }
    }
  }
}

// What recomputation relies on: a row's bits depend neither on the rows beside it nor on the columns.
TEST_P(WordProduct, HasTheSameBitsInBlocksOfAllSizes) {
  const Input in = make_input(23, 160, 96);
  const at::Tensor whole = multiply(product_, in, true);
  for (const int64_t M : {1, 2, 3, 4, 5, 6, 8, 22}) {
    for (const int64_t N : {32, 64, 96}) {
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, 1, M).contiguous(); };
      const Input block{part(in.a), in.b.narrow(1, 32, N).contiguous(),
                        part(in.c).narrow(1, 32, N).contiguous()};
      EXPECT_TRUE(test::bitwise_equal(multiply(product_, block, true), part(whole).narrow(1, 32, N)))
          << M << " " << N;
    }
  }
}

// The comparison has teeth: a term, a row or the sum before it missing, or the two of a pair changed about.
TEST_P(WordProduct, MutantsAreCaught) {
  const Input in = make_input(64, 96, 512);
  const at::Tensor want = reference(in, true);
  const auto fails = [&](const Input& other, bool add = true) {
    return !test::close_to(multiply(product_, other, add), want, test::tolerance(at::kFloat, 512, 1));
  };
  EXPECT_FALSE(fails(in));
  EXPECT_TRUE(fails(in, false));
  Input changed = in;
  changed.a = in.a.clone();
  changed.a.select(1, 511).zero_();
  EXPECT_TRUE(fails(changed));
  changed.a = in.a.clone();
  changed.a[63].zero_();
  EXPECT_TRUE(fails(changed));
  changed.a = in.a.view({64, 256, 2}).flip(2).reshape({64, 512});
  EXPECT_TRUE(fails(changed));
}

INSTANTIATE_TEST_SUITE_P(Products, WordProduct, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Avx512" : "OfThisCpu"; });

}  // namespace
}  // namespace moelab
