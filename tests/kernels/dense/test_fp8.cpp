#include <ATen/ATen.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kernels/dense/fp8.h"
#include "kernels/moe/expert_block.h"
#include "kernels/vector/vec.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/expert_block.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

using at::Tensor;
using test::bitwise_equal;

// One element at a time, by the library's own fp8 types.
Tensor reference(const Tensor& x, Fp8Format format, Fp8Scale axis) {
  const bool e4m3 = format == Fp8Format::e4m3;
  const Tensor wide = x.to(at::kFloat), most = wide.abs().amax(axis == Fp8Scale::by_row ? 1 : 0);
  const Tensor out = at::empty(x.sizes(), at::kFloat);
  for (int64_t r = 0; r < x.size(0); ++r) {
    for (int64_t c = 0; c < x.size(1); ++c) {
      const float limit = most[axis == Fp8Scale::by_row ? r : c].item<float>();
      float scale = 0x1p-120f;
      while (limit / scale > (e4m3 ? 448 : 57344)) scale *= 2;
      const float y = wide[r][c].item<float>() / scale;
      out[r][c] = scale * (e4m3 ? static_cast<float>(c10::Float8_e4m3fn(y))
                                : static_cast<float>(c10::Float8_e5m2(y)));
    }
  }
  return out.to(x.scalar_type());
}

Tensor matrix(int64_t rows, int64_t columns, at::ScalarType dtype) {
  at::manual_seed(rows * 100 + columns);
  // from far below the format's smallest number to its largest
  return (at::randn({rows, columns}) * at::exp2(at::randn({rows, columns}) * 6)).to(dtype);
}

TEST(Fp8, RoundsAsTheLibrarysTypesDo) {
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    for (const auto format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
      for (const auto axis : {Fp8Scale::by_row, Fp8Scale::by_column}) {
        for (const auto& [rows, columns] : {std::pair{9, 37}, {33, 16}, {1, 3}, {20, 1}}) {
          const Tensor x = matrix(rows, columns, dtype), want = reference(x, format, axis);
          EXPECT_TRUE(bitwise_equal(fp8_rounded(x, format, axis), want)) << rows << " x " << columns;
          fp8_round_out(x, x, format, axis);
          EXPECT_TRUE(bitwise_equal(x, want));
        }
      }
    }
  }
}

TEST(Fp8, CodesTimesTheirScalesAreWhatIsRounded) {
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    for (const auto format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
      for (const auto axis : {Fp8Scale::by_row, Fp8Scale::by_column}) {
        Tensor x = matrix(20, 33, dtype);
        x[3].zero_();
        x[5][7] = 448 * 64;
        x[9][2] = std::nanf("");
        x[10][4] = -std::numeric_limits<float>::infinity();
        const auto [codes, scale] = fp8_codes(x, format, axis);
        EXPECT_EQ(codes.element_size(), 1);
        EXPECT_EQ(scale.sizes(),
                  axis == Fp8Scale::by_row ? at::IntArrayRef({20, 1}) : at::IntArrayRef({1, 33}));
        const Tensor got = codes.to(at::kFloat).mul(scale).to(dtype), want = fp8_rounded(x, format, axis);
        EXPECT_TRUE(at::equal(got.isnan(), want.isnan()) && want.isnan().any().item<bool>());
        EXPECT_TRUE(bitwise_equal(got.nan_to_num(), want.nan_to_num()));
      }
    }
  }
}

constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();

// Rows of every kind that scales tell apart, and a last one that is a row as any other.
Tensor rows_of_all_kinds(int64_t rows, int64_t columns, at::ScalarType dtype) {
  const Tensor x = matrix(rows, columns, at::kFloat).clamp_(-3e4, 3e4);
  const int64_t last = columns - 1, middle = columns / 2;
  x[0].zero_();
  x[1].fill_(-0.0);
  x[2].mul_(0x1p-140f);                                             // subnormal numbers in fp32 …
  x[3].mul_(0x1p-127f);                                             // … and in bf16 …
  x[4].mul_(0x1p-22f);                                              // … and in fp16
  x[5].clamp_(-50, 50)[middle] = -1.75 * 32;                        // a power of two times the largest number
  x[6].clamp_(-50, 50)[last] = 32 * (1.75 + test::epsilon(dtype));  // the next number
  x[8][last] = kInfinity;
  x[9][0] = -kInfinity;
  x[10][0] = dtype == at::kHalf ? 65504 : 3e38;
  x[11].zero_()[last] = 0x1p-149f;
  const Tensor narrow = x.to(dtype);
  narrow[7][middle] = kNan;  // without a sign, which the conversion may give it, and a GPU's quotients lack
  return narrow;
}

// By the library's operators, as codes and scales by row.
Fp8Codes library_codes(const Tensor& x, Fp8Format format) {
  const bool e4m3 = format == Fp8Format::e4m3;
  const Tensor most = x.abs().amax(1, true).to(at::kDouble);
  const auto [fraction, exponent] = at::frexp(most / (e4m3 ? 448 : 57344));
  const Tensor power = at::where(fraction == 0.5, exponent - 1, exponent).clamp_min(-126);
  const Tensor factor = at::exp2(power.to(at::kDouble)).to(at::kFloat);
  const Tensor finite = at::where(most == 0, at::ones_like(factor), factor);
  const Tensor scale = at::where(most.isfinite(), finite, at::full_like(factor, kNan));
  return {x.to(at::kFloat).div(scale).to(e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2), scale};
}

Tensor transposed_in_memory(const Tensor& x) { return x.t().contiguous().t(); }

// fp32 numbers in `dtype`, as kernels store them: the instruction that narrows to bf16 makes subnormal
// numbers zeros of their sign, on CPUs that have it.
Tensor as_stored(const Tensor& x, at::ScalarType dtype) {
#ifdef MOELAB_NATIVE_BF16
  if (dtype == at::kBFloat16) return at::where(x.abs() < 0x1p-126f, x.mul(0), x).to(dtype);
#endif
  return x.to(dtype);
}

// Codes and scales have the library's bits; the CPU's rounding is what they stand for.
void expect_the_librarys_codes(c10::Device device) {
  const std::pair<int64_t, int64_t> shapes[] = {{12, 1},  {13, 15},   {12, 17},
                                                {40, 64}, {33, 1000}, {12, 4300}};
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
      for (const auto& [rows, columns] : shapes) {
        const Tensor x = rows_of_all_kinds(rows, columns, dtype), there = x.to(device),
                     rounded = fp8_rounded(x, format, Fp8Scale::by_row).nan_to_num();
        const Fp8Codes want = library_codes(x, format);
        // In the view, rows begin at addresses that are no multiples of 16 bytes.
        const Tensor view =
            at::zeros({rows, columns + 1}, there.options()).narrow(1, 1, columns).copy_(there);
        for (const Tensor& layout : {there, transposed_in_memory(there), view}) {
          const Fp8Codes got = fp8_codes(layout, format, Fp8Scale::by_row),
                         across = fp8_codes(layout.t(), format, Fp8Scale::by_column);
          const std::string name =
              fmt::format("{} {} x {} strides {}", c10::toString(dtype), rows, columns, layout.stride(0));
          EXPECT_TRUE(bitwise_equal(got.scale.cpu(), want.scale)) << name;
          EXPECT_TRUE(bitwise_equal(got.codes.cpu(), want.codes)) << name;
          EXPECT_TRUE(bitwise_equal(across.scale.t().cpu(), want.scale)) << name;
          EXPECT_TRUE(bitwise_equal(across.codes.t().cpu(), want.codes)) << name;
          const Tensor back = got.codes.cpu().to(at::kFloat).mul(got.scale.cpu());
          EXPECT_TRUE(bitwise_equal(as_stored(back, dtype).nan_to_num(), rounded)) << name;
          const Tensor padding = fp8_factors(layout, format, layout.t()).a.slice(1, columns).cpu();
          EXPECT_EQ(padding.size(1), (16 - columns % 16) % 16);
          EXPECT_TRUE(padding.view(at::kByte).eq(0).all().item<bool>()) << name;
        }
      }
    }
  }
}

TEST(Fp8, CodesHaveTheLibrarysBits) { expect_the_librarys_codes(at::kCPU); }

TEST(Fp8Cuda, CodesHaveTheLibrarysBits) {
  MOELAB_NEEDS_CUDA();
  expect_the_librarys_codes(c10::Device(c10::kCUDA, 0));
}

// Compares the product of what `device` rounds with float64; K is padded to whole 16 bytes. On the CPU the
// library takes only one scale, so the scales of rows and columns are applied after its product.
void expect_products_of_rounded_factors(c10::Device device) {
  const auto row = Fp8Scale::by_row, column = Fp8Scale::by_column;
  for (const auto format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    for (const int64_t K : {48, 50, 3}) {
      const Tensor a = matrix(21, K, at::kBFloat16), b = matrix(K, 32, at::kBFloat16);
      const Tensor want =
          reference(a, format, row).to(at::kDouble).mm(reference(b, Fp8Format::e4m3, column).to(at::kDouble));
      const auto product = [&](const Tensor& left, const Tensor& right) {
        const Tensor one = at::ones({1});
        const Fp8Factors f = fp8_factors(left, format, right);
        return at::_scaled_mm(f.a, f.b, one, one, {}, {}, at::kFloat).mul(f.scale_a).mul(f.scale_b);
      };
      const auto tolerance = test::tolerance(at::kBFloat16);
      // the same product twice, the second time of transposes
      for (const auto& [x, y] :
           {std::pair{a, b}, std::pair{a.t().contiguous().t(), b.t().contiguous().t()}}) {
        EXPECT_TRUE(test::close_to(fp8_mm(x.to(device), format, y.to(device)).cpu(), want, tolerance));
        if (device.is_cpu()) {
          EXPECT_TRUE(test::close_to(product(x, y), want, tolerance));
        }
      }
      EXPECT_FALSE(test::close_to(product(a.flip(0), b), want, tolerance));
      EXPECT_FALSE(test::close_to(product(a, b.flip(1)), want, tolerance));
    }
  }
}

TEST(Fp8, ProductsAreThoseOfRoundedFactors) { expect_products_of_rounded_factors(at::kCPU); }

TEST(Fp8Cuda, ProductsAreThoseOfRoundedFactors) {
  MOELAB_NEEDS_CUDA();
  expect_products_of_rounded_factors(c10::Device(c10::kCUDA, 0));
}

TEST(Fp8, ScalesFitTheLargestMagnitudeExactly) {
  const Tensor x = at::tensor({448.0, 0.0, 449.0, 1.0, 0.0, 0.0}, at::kFloat).view({3, 2});
  // 448 needs no scale; 449 needs a scale of 2, with steps of 64 there; zeros stay zeros
  EXPECT_TRUE(bitwise_equal(fp8_rounded(x, Fp8Format::e4m3, Fp8Scale::by_row),
                            at::tensor({448.0, 0.0, 448.0, 1.0, 0.0, 0.0}, at::kFloat).view({3, 2})));
}

TEST(Fp8, WhatIsNotFiniteSpoilsItsOwnRowAlone) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Tensor x = at::ones({3, 40}), y = at::ones({40, 3});
    x[1][37] = bad;
    y[37][1] = bad;
    const Tensor by_row = fp8_rounded(x, Fp8Format::e5m2, Fp8Scale::by_row),
                 by_column = fp8_rounded(y, Fp8Format::e5m2, Fp8Scale::by_column);
    EXPECT_TRUE(by_row[1].isnan().all().item<bool>() && by_column.select(1, 1).isnan().all().item<bool>());
    EXPECT_EQ(by_row.isnan().sum().item<int>(), 40);
    EXPECT_EQ(by_column.isnan().sum().item<int>(), 40);
  }
}

// Compares the three products with float64 products of the rounded factors: fp32 and bf16 differ only by the
// rounding of sums.
TEST(Fp8, LinearAndItsGradientsAreProductsOfRoundedFactors) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor x = matrix(30, 48, dtype).view({2, 15, 48}), w = matrix(64, 48, dtype),
                 dy = matrix(30, 64, dtype).view({2, 15, 64});
    const Tensor leaf_x = x.clone().requires_grad_(), leaf_w = w.clone().requires_grad_();
    const Tensor y = fp8_linear(leaf_x, leaf_w);
    y.backward(dy);
    const auto round = [](const Tensor& t, Fp8Format format, Fp8Scale axis) {
      return reference(t, format, axis).to(at::kDouble);
    };
    const Tensor rows = x.view({30, 48}), gradient = dy.view({30, 64});
    const auto row = Fp8Scale::by_row, column = Fp8Scale::by_column;
    const auto e4m3 = Fp8Format::e4m3, e5m2 = Fp8Format::e5m2;
    const auto tolerance = test::tolerance(dtype, 64);
    EXPECT_TRUE(test::close_to(y.detach().view({30, 64}), round(rows, e4m3, row).mm(round(w, e4m3, row).t()),
                               tolerance));
    EXPECT_TRUE(test::close_to(leaf_x.grad().view({30, 48}),
                               round(gradient, e5m2, row).mm(round(w, e4m3, column)), tolerance));
    EXPECT_TRUE(test::close_to(leaf_w.grad(), round(gradient, e5m2, column).t().mm(round(rows, e4m3, column)),
                               tolerance));
  }
}

// SwiGLU of all rows, with fp8_linear.
Tensor fp8_swiglu(const Tensor& x, const Tensor& w13, const Tensor& w2) {
  const auto h = fp8_linear(x, w13).chunk(2, 1);
  return fp8_linear(at::silu(h[0]) * h[1], w2);
}

// One expert at a time, on its own rows.
Tensor experts_one_by_one(const test::MoeInput& in, const Tensor& x, const Tensor& w13, const Tensor& w2) {
  Tensor y = at::zeros_like(x);
  for (int64_t e = 0; e < w13.size(0); ++e) {
    const Tensor chosen = (in.ids.eq(e) & in.routes.row_TK.ge(0)).nonzero();
    if (chosen.size(0) == 0) continue;
    const Tensor token = chosen.select(1, 0);
    const Tensor weight = in.weights.index({token, chosen.select(1, 1)}).unsqueeze(1);
    y = y.index_add(0, token, fp8_swiglu(x.index_select(0, token), w13[e], w2[e]) * weight);
  }
  return y;
}

template <class F>
std::vector<Tensor> differentiate(const test::MoeInput& in, const F& f) {
  const Tensor x = in.x.clone().requires_grad_(), w13 = in.w13.clone().requires_grad_(),
               w2 = in.w2.clone().requires_grad_();
  const Tensor y = f(x, w13, w2);
  y.backward(in.dy);
  return {y.detach(), x.grad(), w13.grad(), w2.grad()};
}

// In fp32 only numbers near a tie may round differently, because sums have another order. All router weights
// are equal, since the kernel applies them after rounding.
void expect_close(const std::vector<Tensor>& got, const std::vector<Tensor>& want,
                  const std::vector<Tensor>& unrounded, const char* name) {
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(test::close_to(got[i], want[i].to(at::kDouble), 4e-3, 1)) << name << ", tensor " << i;
    EXPECT_FALSE(test::close_to(got[i], unrounded[i].to(at::kDouble), 8e-3, 10)) << name << ", tensor " << i;
  }
}

TEST(Fp8, ExpertBlockAgreesWithExpertsOneByOne) {
  for (const test::MoeCase& c : test::cases_for(test::Use::test, test::moe_cases())) {
    if (c.tokens() < 16) continue;
    test::MoeInput in = test::make_input(c);
    in.weights.fill_(0.5);
    const auto block = [&](bool fp8) {
      return differentiate(in, [&](const Tensor& x, const Tensor& w13, const Tensor& w2) {
        return expert_block(x, in.weights, in.routes, w13, w2, fp8);
      });
    };
    const auto want = differentiate(in, [&](const Tensor& x, const Tensor& w13, const Tensor& w2) {
      return experts_one_by_one(in, x, w13, w2);
    });
    expect_close(block(true), want, block(false), c.name);
  }
}

// Every second row or column of a weight is far smaller than the others. Where a product does not sum along
// them, each has its own scale, and results that depend only on the small ones keep their precision.
TEST(Fp8, ExpertBlockScalesRowsAndColumnsApart) {
  struct Small {
    bool w13;
    int64_t dim;    // of the weight
    size_t tensor;  // of y, dx, dw13, dw2: the one that depends on the small weights …
    int64_t along;  // … along this dimension
  };
  for (const Small& small : {Small{false, 1, 0, 1}, {false, 2, 2, 1}, {true, 2, 1, 1}, {true, 1, 3, 2}}) {
    test::MoeInput in = test::make_input(test::moe_cases()[0]);
    in.weights.fill_(0.5);
    const auto every_second = [](const Tensor& t, int64_t dim) { return t.slice(dim, 1, t.size(dim), 2); };
    every_second(small.w13 ? in.w13 : in.w2, small.dim).mul_(0x1p-24);
    const auto got = differentiate(in, [&](const Tensor& x, const Tensor& w13, const Tensor& w2) {
      return expert_block(x, in.weights, in.routes, w13, w2, true);
    });
    const auto want = differentiate(in, [&](const Tensor& x, const Tensor& w13, const Tensor& w2) {
      return experts_one_by_one(in, x, w13, w2);
    });
    const auto followers = [&](const std::vector<Tensor>& all) {
      return every_second(all[small.tensor], small.along).to(at::kDouble) * 0x1p24;
    };
    EXPECT_TRUE(test::close_to(followers(got), followers(want), 4e-3, 1)) << "tensor " << small.tensor;
  }
}

TEST(Fp8, DenseBlockAgreesWithItsProducts) {
  test::MoeInput in = test::make_input(test::moe_cases()[0]);
  in.w13 = in.w13[0];
  in.w2 = in.w2[0];
  const auto block = [&](bool fp8) {
    return differentiate(in, [&](const Tensor& x, const Tensor& w13, const Tensor& w2) {
      return dense_block(x, w13, w2, fp8);
    });
  };
  expect_close(block(true), differentiate(in, fp8_swiglu), block(false), "dense");
}

TEST(Fp8, RefusesWrongTensors) {
  EXPECT_THROW(fp8_rounded(at::ones({4}), Fp8Format::e4m3, Fp8Scale::by_row), c10::Error);
  EXPECT_THROW(fp8_rounded(at::ones({4, 4}).t().narrow(0, 0, 2), Fp8Format::e4m3, Fp8Scale::by_row),
               c10::Error);
  EXPECT_THROW(fp8_rounded(at::ones({4, 4}, at::kDouble), Fp8Format::e4m3, Fp8Scale::by_row), c10::Error);
  EXPECT_THROW(fp8_codes(at::ones({4, 4}, at::kDouble), Fp8Format::e4m3, Fp8Scale::by_row), c10::Error);
  EXPECT_THROW(fp8_codes(at::ones({4, 4, 4}), Fp8Format::e4m3, Fp8Scale::by_row), c10::Error);
  EXPECT_THROW(fp8_codes(at::ones({4, 4, 4}).select(2, 0), Fp8Format::e4m3, Fp8Scale::by_row), c10::Error);
}

}  // namespace
}  // namespace moelab
