#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/emulator/races.h"
#include "tests/emulator/warpgroup_samples.h"

// kernels/device/warpgroup.cuh on the emulator, beside plain loops in float64.
namespace moelab::emulator {
namespace {

using samples::FactorLayouts;
using samples::kProductTerms;
using samples::kRowsA;
using samples::kRowsB;
using samples::Mistake;

template <class T>
class Product {
 public:
  explicit Product(FactorLayouts layouts)
      : layouts_(layouts),
        a_(kRowsA * kProductTerms),
        b_(kRowsB * kProductTerms),
        c_(kRowsA * kRowsB),
        d_(c_.size(), 7) {
    std::minstd_rand random(5);
    std::uniform_real_distribution<float> value(-2, 2);
    for (T& x : a_) x = T(value(random));
    for (T& x : b_) x = T(value(random));
    for (float& x : c_) x = value(random);
  }
  cudaError_t multiply(cuda::Element element, Mistake mistake) {
    samples::multiply_group(element, layouts_, mistake, a_.data(), b_.data(), c_.data(), d_.data());
    return cudaGetLastError();
  }
  // The largest distance from what a plain loop makes, NaN if there is one.
  double error() const {
    double worst = 0;
    for (size_t i = 0; i < kRowsA; ++i) {
      for (size_t j = 0; j < kRowsB; ++j) {
        double sum = c_[kRowsB * i + j];
        for (size_t k = 0; k < kProductTerms; ++k)
          sum += at(a_, kRowsA, layouts_.transposed_a, i, k) * at(b_, kRowsB, layouts_.transposed_b, j, k);
        const double distance = std::abs(sum - double{d_[kRowsB * i + j]});
        if (!(distance <= worst)) worst = distance;
        if (std::isnan(distance)) return distance;
      }
    }
    return worst;
  }

 private:
  static double at(const std::vector<T>& matrix, size_t rows, bool transposed, size_t row, size_t term) {
    return double{static_cast<float>(matrix[transposed ? term * rows + row : row * kProductTerms + term])};
  }
  FactorLayouts layouts_;
  std::vector<T> a_, b_;
  std::vector<float> c_, d_;
};

constexpr FactorLayouts kLayouts[] = {{false, false}, {false, true}, {true, false}, {true, true}};

TEST(Wgmma, AWarpgroupMultipliesFactorsInSharedMemory) {
  for (const FactorLayouts layouts : kLayouts) {
    Product<__nv_bfloat16> bf16(layouts);
    ASSERT_EQ(bf16.multiply(cuda::Element::bf16, Mistake::none), cudaSuccess);
    EXPECT_LT(bf16.error(), 1e-4) << layouts.transposed_a
                                  << layouts.transposed_b;  // sums below 260, rounded four times
    Product<__half> fp16(layouts);
    ASSERT_EQ(fp16.multiply(cuda::Element::f16, Mistake::none), cudaSuccess);
    EXPECT_LT(fp16.error(), 1e-4) << layouts.transposed_a << layouts.transposed_b;
  }
}

TEST(Wgmma, AFactorThatIsNotSwizzledGivesOtherSums) {
  for (const FactorLayouts layouts : kLayouts) {
    Product<__nv_bfloat16> product(layouts);
    ASSERT_EQ(product.multiply(cuda::Element::bf16, Mistake::not_swizzled), cudaSuccess);
    EXPECT_GT(product.error(), 0.1);
  }
}

TEST(Wgmma, WhatIsNotFencedOrWaitedForIsNaN) {
  for (const Mistake mistake :
       {Mistake::hidden, Mistake::sums_not_given, Mistake::open_group, Mistake::no_wait, Mistake::changed}) {
    Product<__nv_bfloat16> product({false, true});
    product.multiply(cuda::Element::bf16, mistake);
    EXPECT_TRUE(std::isnan(product.error())) << static_cast<int>(mistake);
  }
}

TEST(Wgmma, FactorsThatOthersStillCopyAreARace) {
  Product<__nv_bfloat16> product({false, true});
  const int64_t before = races::found();
  EXPECT_EQ(product.multiply(cuda::Element::bf16, Mistake::no_barrier), cudaErrorLaunchFailure);
  EXPECT_GT(races::found(), before);
}

TEST(Wgmma, ADescriptionThatIsNotAtABlocksBeginningFails) {
  Product<__nv_bfloat16> product({false, true});
  EXPECT_EQ(product.multiply(cuda::Element::bf16, Mistake::misaligned), cudaErrorLaunchFailure);
}

}  // namespace
}  // namespace moelab::emulator
