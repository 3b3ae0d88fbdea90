#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "tests/emulator/fibers.h"
#include "tests/emulator/races.h"
#include "tests/emulator/tensor_core_samples.h"

// kernels/device/tensor_core.cuh on the emulator, beside plain loops.
namespace moelab::emulator {
namespace {

using samples::Missing;

template <class T>
struct Matrices {
  std::array<T, 16 * 16> a;
  std::array<T, 16 * 8> b;
  std::array<float, 16 * 8> c, d{};

  Matrices() {
    std::minstd_rand random(5);
    std::uniform_real_distribution<float> value(-2, 2);
    for (T& x : a) x = T(value(random));
    for (T& x : b) x = T(value(random));
    for (float& x : c) x = value(random);
  }
  void multiply(cuda::Element element, bool swapped) {
    samples::multiply(element, swapped, a.data(), b.data(), c.data(), d.data());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  // The largest distance from what a plain loop makes.
  double error() const {
    double worst = 0;
    for (size_t i = 0; i < 16; ++i) {
      for (size_t j = 0; j < 8; ++j) {
        double sum = c[8 * i + j];
        for (size_t k = 0; k < 16; ++k)
          sum += double{static_cast<float>(a[16 * i + k])} * double{static_cast<float>(b[8 * k + j])};
        worst = std::max(worst, std::abs(sum - double{d[8 * i + j]}));
      }
    }
    return worst;
  }
};

template <class T>
void expect_product(cuda::Element element) {
  Matrices<T> m;
  m.multiply(element, false);
  EXPECT_LT(m.error(), 1e-5);  // sums of 17 terms below 4, rounded to fp32 once
  m.multiply(element, true);
  EXPECT_GT(m.error(), 0.1);
}

TEST(Ptx, AWarpMultipliesTheFragmentsOfItsLanes) {
  expect_product<__nv_bfloat16>(cuda::Element::bf16);
  expect_product<__half>(cuda::Element::f16);
}

TEST(Ptx, AWarpLoadsMatricesByTheirRows) {
  alignas(16) std::array<uint16_t, 4 * 64> from;
  std::iota(from.begin(), from.end(), uint16_t{0});
  for (const bool transposed : {false, true}) {
    std::array<uint32_t, 32 * 4> to{};
    samples::load_matrices(transposed, from.data(), to.data());
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    for (size_t lane = 0; lane < 32; ++lane) {
      for (size_t i = 0; i < 4; ++i) {
        const size_t row = lane / 4, first = 2 * (lane % 4);
        const size_t low = transposed ? 8 * first + row : 8 * row + first, high = low + (transposed ? 8 : 1);
        EXPECT_EQ(to[4 * lane + i], from[64 * i + low] | uint32_t{from[64 * i + high]} << 16);
      }
    }
  }
}

TEST(Ptx, CopiesAreThereWhenTheirThreadHasWaitedAndAllHaveMet) {
  alignas(16) std::array<uint16_t, 3 * samples::kCopied> from, to;
  std::iota(from.begin(), from.end(), uint16_t{1});
  const auto number = [&](size_t part, size_t i) {  // of thread i / 8, from its partner in the other warp
    return part == 1 ? 0 : from[part * samples::kCopied + (i ^ 256)];
  };
  for (const Missing missing : {Missing::nothing, Missing::wait, Missing::barrier, Missing::last_group}) {
    to.fill(7);
    const int64_t before = races::found();
    samples::copy_parts(missing, from.data(), to.data());
    EXPECT_EQ(cudaGetLastError(), missing == Missing::barrier ? cudaErrorLaunchFailure : cudaSuccess);
    EXPECT_EQ(races::found() > before, missing == Missing::barrier);
    for (size_t part = 0; part < 3 && missing != Missing::barrier; ++part) {
      const bool late = missing == Missing::wait || (missing == Missing::last_group && part == 2);
      for (size_t i = 0; i < samples::kCopied; ++i)
        ASSERT_EQ(to[part * samples::kCopied + i], late ? 0xFFFF : number(part, i)) << part << " " << i;
    }
  }
}

TEST(Ptx, ACopyFromBetweenItsUnitsFails) {
  alignas(16) std::array<uint16_t, 16> from{};
  samples::copy_one(from.data());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  samples::copy_one(from.data() + 1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
}

}  // namespace
}  // namespace moelab::emulator
