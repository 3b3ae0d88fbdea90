#include "kernels/memory/device_memory.h"
#include "kernels/memory/ledger.h"
#include "kernels/update/squared_norm.h"
#include "kernels/update/squared_norm_parts.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/squared_norm.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

using at::Tensor;
using test::ThreadScope;

double reference(const Tensor& x) {
  const Tensor wide = x.to(at::kDouble).contiguous();
  long double sum = 0;
  for (int64_t i = 0; i < wide.numel(); ++i) {
    const long double value = wide.data_ptr<double>()[i];
    sum += value * value;
  }
  return static_cast<double>(sum);
}

TEST(SquaredNorm, MatchesADoubleLoop) {
  for (const auto& c : test::cases_for(test::Use::test, test::squared_norm_cases())) {
    const Tensor x = make_input(c);
    const double want = reference(x);
    EXPECT_NEAR(squared_norm(x), want, 1e-13 * want) << c.name << ' ' << c.dtype;
  }
  EXPECT_EQ(squared_norm(at::full({3, 5, 7}, 2.0f)), 420);
}

TEST(SquaredNorm, SeesEveryElement) {
  const Tensor x = at::zeros({65536 + 37});
  for (const int64_t i : {0, 16, 65535, 65536, 65536 + 32, 65536 + 36}) {
    x.zero_();
    x[i] = 3;
    EXPECT_EQ(squared_norm(x), 9) << i;
  }
}

TEST(SquaredNorm, HugeAndTinyValuesDoNotLeaveTheRange) {
  EXPECT_NEAR(squared_norm(at::full({100}, 3e38f)) / (100 * 9e76), 1, 1e-6);
  EXPECT_NEAR(squared_norm(at::full({100}, 1e-38f)) / (100 * 1e-76), 1, 1e-6);
  Tensor x = at::full({100000}, 1e-3f);
  x[0] = 1e4f;  // fp32 sums would lose all the others
  EXPECT_NEAR(squared_norm(x), reference(x), 1e-4);
}

TEST(SquaredNorm, InfinityAndNanComeThrough) {
  Tensor x = at::ones({70000});
  x[69999] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(squared_norm(x), std::numeric_limits<double>::infinity());
  x[3] = std::nan("");
  EXPECT_TRUE(std::isnan(squared_norm(x)));
}

TEST(SquaredNorm, ThreadsChangeNoBit) {
  at::manual_seed(2);
  const Tensor x = at::randn({1000003});
  double one, two;
  {
    const ThreadScope threads(1);
    one = squared_norm(x);
  }
  {
    const ThreadScope threads(2);
    two = squared_norm(x);
  }
  EXPECT_EQ(one, two);
}

TEST(SquaredNorm, MetaIsZeroAndAllocatesNothing) {
  install_allocators();
  const Tensor x = at::ones({1000}, at::kMeta);
  meta_ledger().reset_peaks();
  EXPECT_EQ(squared_norm(x), 0);
  EXPECT_EQ(meta_ledger().peak(), meta_ledger().allocated());
}

TEST(SquaredNormCuda, IsTheCpus) {
  MOELAB_NEEDS_CUDA();
  at::manual_seed(3);
  for (const int64_t count : {int64_t{0}, int64_t{5}, cuda::kNormChunk, 9 * cuda::kNormChunk + 5}) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Tensor x = (at::randn({count}) * 1e3).to(type);
      const double want = squared_norm(x);
      EXPECT_NEAR(squared_norm(x.to(at::kCUDA)), want, 1e-13 * want) << count << ' ' << type;
    }
  }
  EXPECT_NEAR(squared_norm(at::full({100}, 3e38f, at::kCUDA)) / (100 * 9e76), 1, 1e-6);
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    const Tensor x = at::ones({70001}, at::kCUDA);
    x[70000] = bad;
    EXPECT_FALSE(std::isfinite(squared_norm(x)));
  }
}

// Beside the tensor: a sum for each chunk, and three blocks that the allocator rounds up.
TEST(SquaredNormCuda, MakesNoCopy) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  const c10::Device gpu(c10::kCUDA, 0);
  constexpr int64_t kCount = (int64_t{1} << 22) + 3;
  const Tensor x = at::ones({kCount}, at::TensorOptions(gpu).dtype(at::kBFloat16));
  const int64_t before = device_memory(gpu).allocated;
  reset_peaks(gpu);
  EXPECT_NEAR(squared_norm(x), static_cast<double>(kCount), 1e-3);
  EXPECT_LE(device_memory(gpu).peak - before, 8 * cuda::norm_scratch(kCount) + 3 * 512);
}

TEST(SquaredNorm, RefusesOtherTensors) {
  EXPECT_THROW(squared_norm(at::ones({4}, at::kDouble)), c10::Error);
  EXPECT_THROW(squared_norm(at::ones({4, 4}).t()), c10::Error);
}

}  // namespace
}  // namespace moelab
