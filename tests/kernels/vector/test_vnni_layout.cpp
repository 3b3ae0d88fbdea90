#include "kernels/vector/vnni_layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/vector/line.h"

// The layouts that blocked products read, and the lines that they store, are compared bit for bit with
// LibTorch's own transposes, conversions and roundings. Everything around an operand is NaN; everything
// around a result must stay as it is.
namespace moelab {
namespace {

constexpr int64_t kGap = 5;  // elements between rows
constexpr double kMark = -77;

template <class T>
class VnniLayout : public ::testing::Test {
 protected:
  static constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value,
                                  kTerm = c10::CppTypeToScalarType<Term<T>>::value;

  // (rows, width) of distinct values, with NaN after each row and after the last.
  static at::Tensor among_nan(int64_t rows, int64_t width) {
    const at::Tensor all =
        at::full({rows + 1, width + kGap}, std::numeric_limits<double>::quiet_NaN(), kType);
    const at::Tensor matrix = all.narrow(0, 0, rows).narrow(1, 0, width);
    // bf16 has 8 bits of significand, so rows and columns are separate factors
    matrix.copy_(at::pow(2.0, at::arange(rows, at::kDouble) % 61 - 30).unsqueeze(1) *
                 (128 + at::arange(width, at::kDouble) % 127));
    return matrix;
  }
  static at::Tensor marked(int64_t rows, int64_t width, at::ScalarType type = kTerm) {
    return at::full({rows, width}, kMark, type);
  }
  static void expect_untouched(const at::Tensor& t) { EXPECT_TRUE(t.eq(kMark).all().template item<bool>()); }
};

using Types = ::testing::Types<float, at::BFloat16, at::Half>;
TYPED_TEST_SUITE(VnniLayout, Types);

TYPED_TEST(VnniLayout, TransposesTilesOfAnyNumberOfRows) {
  for (int64_t rows = 1; rows <= 32; ++rows) {
    const at::Tensor from = this->among_nan(rows, 32), to = this->marked(32, 40);
    transpose_tile(from.const_data_ptr<TypeParam>(), from.stride(0), rows,
                   to.mutable_data_ptr<Term<TypeParam>>(), 40);
    EXPECT_TRUE(to.narrow(1, 0, rows).equal(from.t().to(this->kTerm))) << rows;
    this->expect_untouched(to.narrow(1, rows, 40 - rows));
  }
}

TYPED_TEST(VnniLayout, TransposesRowsWithZerosUpToThePadding) {
  for (const int64_t rows : {1, 31, 32, 33, 64, 100}) {
    for (const int64_t width : {32, 96}) {
      const int64_t padded = round_up(rows, kTile), stride = padded + 8;
      const at::Tensor from = this->among_nan(rows, width), to = this->marked(width, stride);
      transpose_rows(from.const_data_ptr<TypeParam>(), from.stride(0), rows, padded, width,
                     to.mutable_data_ptr<Term<TypeParam>>(), stride);
      EXPECT_TRUE(to.narrow(1, 0, rows).equal(from.t().to(this->kTerm))) << rows << ", " << width;
      EXPECT_TRUE(to.narrow(1, rows, padded - rows).eq(0).all().template item<bool>());
      this->expect_untouched(to.narrow(1, padded, 8));
    }
  }
}

TYPED_TEST(VnniLayout, PacksTransposesInWholeWords) {
  constexpr int64_t in_word = kInWord<TypeParam>;
  for (const int64_t rows : {1, 15, 16, 17, 48, 70}) {
    for (const int64_t width : {32, 96}) {
      const int64_t padded = round_up(rows, kTile), stride = padded + 8;
      // rows of whole words
      const at::Tensor from = this->among_nan(rows, width + 1).narrow(1, 0, width),
                       to = this->marked(width / in_word * stride, in_word)
                                .view({width / in_word, stride, in_word});
      pack_transposed(from.const_data_ptr<TypeParam>(), from.stride(0), rows, padded, width,
                      static_cast<int32_t*>(to.mutable_data_ptr()), stride);
      const at::Tensor expected =
          from.to(this->kTerm).contiguous().view({rows, width / in_word, in_word}).transpose(0, 1);
      EXPECT_TRUE(to.narrow(1, 0, rows).equal(expected)) << rows << ", " << width;
      EXPECT_TRUE(to.narrow(1, rows, padded - rows).eq(0).all().template item<bool>());
      this->expect_untouched(to.narrow(1, padded, 8));
    }
  }
}

// Numbers at which rounding is decided: ties to even, their neighbours, the largest, and infinities.
at::Tensor hard_to_round(int64_t count) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({count}) * at::pow(2.0, at::randint(-60, 60, {count}));
  float* p = x.mutable_data_ptr<float>();
  const float inf = std::numeric_limits<float>::infinity();
  const float hard[] = {0.0f,
                        -0.0f,
                        0x1.01p0f,
                        0x1.03p0f,
                        std::nextafter(0x1.01p0f, 2.0f),
                        -0x1.01p0f,
                        std::nextafter(0x1.03p0f, 1.0f),
                        std::numeric_limits<float>::max(),
                        inf,
                        -inf};
  std::copy(std::begin(hard), std::end(hard), p);
  return x;
}

TYPED_TEST(VnniLayout, StoresLinesRounded) {
  constexpr int64_t size = Line<TypeParam>::kSize;
  const at::Tensor x = hard_to_round(4 * size), expected = x.to(this->kType);
  for (const Store how : {Store::cached, Store::streaming}) {
    const at::Tensor stored = this->marked(1, 6 * size, this->kType)[0], again = at::empty({4 * size});
    for (int64_t i = 0; i < 4 * size; i += size) {
      const Line<TypeParam> line = line_of<TypeParam>(x.const_data_ptr<float>() + i);
      store_line(stored.mutable_data_ptr<TypeParam>() + size + i, line, how);
      flush_stores();
      // what is loaded, and what is rounded in registers
      const Line<TypeParam> loaded = load_line(stored.const_data_ptr<TypeParam>() + size + i),
                            same = rounded(line);
      for (int64_t v = 0; v < Line<TypeParam>::kVecs; ++v) {
        loaded.v[v].store(again.mutable_data_ptr<float>() + i + v * kLanes);
        EXPECT_EQ((loaded.v[v] == same.v[v]).zero_mask(), 0) << i << ", " << v;
      }
    }
    EXPECT_TRUE(stored.narrow(0, size, 4 * size).equal(expected));
    EXPECT_TRUE(again.equal(expected.to(at::kFloat)));
    this->expect_untouched(stored.narrow(0, 0, size));
    this->expect_untouched(stored.narrow(0, 5 * size, size));
  }
}

TYPED_TEST(VnniLayout, OfTwoRowsArePairsOrTwoRowsOfFloats) {
  constexpr bool pairs = kInWord<TypeParam> == 2;
  const at::Tensor rows = hard_to_round(2 * kLanes).view({2, kLanes}), words = this->marked(2, kLanes + 3);
  const auto store = [&](const Vec& even, const Vec& odd) {
    store_words<TypeParam>(static_cast<int32_t*>(words.mutable_data_ptr()), kLanes + 3, even, odd);
  };
  const auto stored = [&] {
    return pairs ? words.flatten().narrow(0, 0, 2 * kLanes).view({kLanes, 2}).t()
                 : words.narrow(1, 0, kLanes);
  };
  const float* p = rows.const_data_ptr<float>();
  store(Vec::loadu(p), Vec::loadu(p + kLanes));
  EXPECT_TRUE(stored().equal(rows.to(this->kTerm)));
  const Vec nan(std::numeric_limits<float>::quiet_NaN());
  store(nan, nan);
  EXPECT_TRUE(stored().isnan().all().template item<bool>());
}

}  // namespace
}  // namespace moelab
