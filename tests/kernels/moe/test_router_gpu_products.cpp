#include <gtest/gtest.h>

#include "kernels/memory/device_memory.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/aten_meta.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/moe/router_gpu_products.h"
#include "tests/cuda_device.h"
#include "tests/kernels/reference.h"

// The router's products on a GPU, each variant beside float64 and beside what a dry run says that it holds.
// Axes: T tokens, D width, E experts.
namespace moelab::router_detail {
namespace {

using at::Tensor;

struct Case {
  const char* variant;
  int64_t T, D, E;
  at::ScalarType dtype;  // of x
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* const variant : {"plain", "split"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      all.push_back({variant, 48, 32, 8, dtype});
      all.push_back({variant, 7, 65, 5, dtype});  // no multiples of a tile
      all.push_back({variant, 0, 16, 4, dtype});
    }
  }
  all.push_back({"plain", 1030, 16400, 2, at::kBFloat16});  // more than one chunk of tokens
  all.push_back({"split", 1030, 2, 8200, at::kBFloat16});
  return all;
}

struct Tensors {
  Tensor x, w, dlogits, logits, dx, dw;

  Tensors(const Case& c, c10::Device device) {
    const auto fp32 = at::TensorOptions(device).dtype(at::kFloat);
    at::manual_seed(6);
    x = at::randn({c.T, c.D}, fp32).to(c.dtype);
    w = at::randn({c.E, c.D}, fp32);
    dlogits = at::randn({c.T, c.E}, fp32);
    logits = at::full({c.T, c.E}, NAN, fp32);
    dx = at::full({c.T, c.D}, NAN, x.options());
    dw = at::full({c.E, c.D}, NAN, fp32);
  }
  // The most that the products held beside these.
  int64_t peak() {
    install_allocators();
    install_meta_kernels();
    int64_t most = 0;
    for (const bool backward : {false, true}) {
      const int64_t before = device_memory(x.device()).allocated;
      reset_peaks(x.device());
      backward ? router_gradients(x, w, dlogits, dx, dw) : router_logits(x, w, logits);
      most = std::max(most, device_memory(x.device()).peak - before);
    }
    return most;
  }
};

class RouterGpuProducts : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    at::globalContext().setAllowBF16ReductionCuBLAS(false);  // as open_device() has it
    use_kernels({{"router_logits", GetParam().variant}, {"router_gradients", GetParam().variant}});
  }
  void TearDown() override { use_kernels(before_); }

 private:
  const KernelChoice before_ = kernels_in_use();
};

TEST_P(RouterGpuProducts, AgreeWithFloat64) {
  MOELAB_NEEDS_CUDA();
  const Case& c = GetParam();
  Tensors t(c, c10::Device(c10::kCUDA, 0));
  router_logits(t.x, t.w, t.logits);
  router_gradients(t.x, t.w, t.dlogits, t.dx, t.dw);
  const Tensor x = t.x.to(at::kDouble), w = t.w.to(at::kDouble), d = t.dlogits.to(at::kDouble);
  EXPECT_TRUE(test::close_to(t.logits, at::mm(x, w.t()), test::tolerance(at::kFloat, c.D, 4)));
  EXPECT_TRUE(test::close_to(t.dw, at::mm(d.t(), x), test::tolerance(at::kFloat, c.T, 4)));
  const Tensor dx = at::mm(d, w);
  EXPECT_TRUE(test::close_to(t.dx, dx, test::tolerance(c.dtype, c.E)));
  if (c.T > 0 &&
      c.dtype != at::kFloat) {  // one rounding, of what is far closer: hardly an element lies across
    EXPECT_GT(t.dx.eq(dx.to(c.dtype)).to(at::kDouble).mean().item<double>(), 0.97);
  }
}

// LibTorch rounds each of a dozen tensors up to 512 bytes.
TEST_P(RouterGpuProducts, ADryRunPredictsWhatTheyHold) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  Tensors t(GetParam(), c10::Device(c10::kCUDA, 0)), dry(GetParam(), c10::Device(c10::kMeta));
  t.peak();  // makes the workspaces that LibTorch makes once
  const int64_t measured = t.peak();
  const SimulatedDevice gpu(c10::kCUDA);
  const int64_t predicted = dry.peak();
  EXPECT_GE(measured, predicted);
  EXPECT_LE(measured, predicted + 12 * 512);
}

INSTANTIATE_TEST_SUITE_P(Cases, RouterGpuProducts, ::testing::ValuesIn(cases()), [](const auto& info) {
  const Case& c = info.param;
  return std::string(c.variant) + "_" + toString(c.dtype) + "_" + std::to_string(c.T) + "x" +
         std::to_string(c.D) + "x" + std::to_string(c.E);
});

}  // namespace
}  // namespace moelab::router_detail
