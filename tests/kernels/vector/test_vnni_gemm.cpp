#include "kernels/vector/vnni_gemm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/reference.h"

// Axes: M rows, K terms, N columns.
namespace moelab {
namespace {

constexpr int64_t kGap = 6;     // between rows of the left operand
constexpr float kMark = -77.0;  // around the result

struct Input {
  at::Tensor a, b, c;  // (M, K), (K, N); (M, N) fp32, which is added to
};

template <class T>
class VnniGemm : public ::testing::Test {
 protected:
  using Product = void (*)(int64_t, int64_t, int64_t, bool, const T*, int64_t, const int32_t*, float*);
  static constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value;

  void SetUp() override {
    if constexpr (kConverts<T>) {
      GTEST_SKIP() << "the CPU that this is built for multiplies no " << kType;
    } else {
      products_.push_back(detail::multiply_tiles<T>);
      if (uses_matrix_unit<T>()) products_.push_back(multiply_words<T>);
    }
  }
  void TearDown() override { release_words(); }

  static Input make_input(int64_t M, int64_t N, int64_t K) {
    at::manual_seed(M * 1000003 + N * 1009 + K);
    return {at::randn({M, K}).to(kType), at::randn({K, N}).to(kType), at::randn({M, N})};
  }

  // Everything around the operands is NaN; everything around the result must stay as it is.
  static at::Tensor multiply(Product product, const Input& in, bool add) {
    const int64_t M = in.a.size(0), K = in.a.size(1), N = in.b.size(1);
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    const at::Tensor rows = at::full({M + 1, K + kGap}, nan, kType);
    rows.narrow(0, 0, M).narrow(1, 0, K).copy_(in.a);
    const at::Tensor words = at::full({K / kInWord<T> + 1, N, kInWord<T>}, nan, kType);
    words.narrow(0, 0, K / kInWord<T>).copy_(in.b.view({K / kInWord<T>, kInWord<T>, N}).transpose(1, 2));
    const at::Tensor c = at::full({M + 2, N}, kMark), result = c.narrow(0, 1, M);
    if (add) result.copy_(in.c);
    product(M, N, K, add, rows.const_data_ptr<T>(), K + kGap,
            static_cast<const int32_t*>(words.const_data_ptr()), result.mutable_data_ptr<float>());
    EXPECT_TRUE(c[0].eq(kMark).all().item<bool>() && c[M + 1].eq(kMark).all().item<bool>());
    return result;
  }

  static at::Tensor reference(const Input& in, bool add) {
    const at::Tensor product = in.a.to(at::kDouble).mm(in.b.to(at::kDouble));
    return add ? product + in.c : product;
  }

  std::vector<Product> products_;  // our own and, if there is one, LibTorch's
};

using Types = ::testing::Types<at::BFloat16, float>;
struct Names {
  template <class T>
  static std::string GetName(int) {
    return std::is_same_v<T, float> ? "float" : "bf16";
  }
};
TYPED_TEST_SUITE(VnniGemm, Types, Names);

TYPED_TEST(VnniGemm, AgreesWithFloat64) {
  for (const auto product : this->products_) {
    for (const int64_t M : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 16, 64, 127}) {
      for (const int64_t N : {32, 64, 96, 128, 160}) {
        for (const int64_t K : {32, 96, 512}) {
          const Input in = this->make_input(M, N, K);
          for (const bool add : {false, true}) {
            EXPECT_TRUE(test::close_to(this->multiply(product, in, add), this->reference(in, add),
                                       test::tolerance(at::kFloat, K, 1)))
                << M << " " << N << " " << K << " " << add;
          }
        }
      }
    }
  }
}

// Recomputation relies on this: a row's bits depend neither on the other rows nor on the columns.
TYPED_TEST(VnniGemm, HasTheSameBitsInBlocksOfAllSizes) {
  const Input in = this->make_input(23, 160, 96);
  for (const auto product : this->products_) {
    const at::Tensor whole = this->multiply(product, in, true);
    for (const int64_t M : {1, 2, 3, 4, 5, 6, 8, 22}) {
      for (const int64_t N : {32, 64, 96}) {
        const auto part = [&](const at::Tensor& t) { return t.narrow(0, 1, M).contiguous(); };
        const Input block{part(in.a), in.b.narrow(1, 32, N).contiguous(),
                          part(in.c).narrow(1, 32, N).contiguous()};
        EXPECT_TRUE(test::bitwise_equal(this->multiply(product, block, true), part(whole).narrow(1, 32, N)))
            << M << " " << N;
      }
    }
  }
}

// The comparison detects a missing term, a missing row, a missing sum from before, and two swapped
// neighbours.
TYPED_TEST(VnniGemm, MutantsAreCaught) {
  const Input in = this->make_input(64, 96, 512);
  const at::Tensor want = this->reference(in, true);
  for (const auto product : this->products_) {
    const auto fails = [&](const Input& other, bool add = true) {
      return !test::close_to(this->multiply(product, other, add), want, test::tolerance(at::kFloat, 512, 1));
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
}

}  // namespace
}  // namespace moelab
