#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/memory/device_memory.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/aten_meta.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/moe/router.h"
#include "tests/cuda_device.h"

// Bytes that the router holds while meta stands for CUDA, compared with the sizes of what its CUDA side
// allocates, and with a GPU. Axes: T tokens in B sequences of S, E experts.
namespace moelab {
namespace {

using at::Tensor;

constexpr int64_t kWidth = 8, kCapacity = 16;
const c10::Device kMetaDevice(c10::kMeta);

struct Case {
  int64_t B, S, E;
  int64_t scores() const { return B * S * E; }
};

// The peak of forward; with `replayed`, for a choice that was made before.
int64_t peak_of(c10::Device device, const Case& c, RouterChoice choice, bool replayed = false) {
  install_allocators();
  install_meta_kernels();
  const at::NoGradGuard no_grad;
  const auto fp32 = at::TensorOptions(device).dtype(at::kFloat);
  const Tensor x = at::zeros({c.B * c.S, kWidth}, fp32), w = at::zeros({c.E, kWidth}, fp32);
  std::optional<Tensor> ids;
  if (replayed) ids = at::zeros({c.B * c.S, c.E}, fp32.dtype(at::kInt));
  const int64_t before = device_memory(device).allocated;
  reset_peaks(device);
  route(x, w, std::nullopt, ids, {.choice = choice, .top_k = c.E, .sequence = c.S, .capacity = kCapacity});
  return device_memory(device).peak - before;
}

int64_t sort_bytes(const Case& c, bool replayed = false) {
  return peak_of(kMetaDevice, c, RouterChoice::expert, replayed) -
         peak_of(kMetaDevice, c, RouterChoice::token);
}

TEST(RouterOnMeta, ExpertChoiceSortsOnCudaAlone) {
  const Case c{2, 4096, 16};
  EXPECT_EQ(sort_bytes(c), 0);
  const SimulatedDevice gpu(c10::kCUDA);
  EXPECT_GT(sort_bytes(c), 0);
  EXPECT_EQ(sort_bytes(c, true), 0) << "the choice is that of the first forward";
}

// fp32 scores, with the values and positions of the sort: 16 bytes a score. For more than 4096 tokens a
// second such sort and CUB's scratch. The fp32 copy of x exists only before that.
TEST(RouterOnMeta, ExpertChoiceHoldsItsScoresAndTheirSort) {
  const SimulatedDevice gpu(c10::kCUDA);
  struct Row {
    Case c;
    int64_t bytes_a_score;
  };
  for (const Row& row : {Row{{2, 4096, 16}, 16}, {{2, 4097, 16}, 64}, {{8, 4097, 16}, 52}}) {
    const int64_t copy = 4 * row.c.B * row.c.S * kWidth;
    EXPECT_EQ(sort_bytes(row.c), row.bytes_a_score * row.c.scores() - copy) << row.c.S;
  }
}

// In addition to the results: for each sequence three chunks with scores and routes of every expert, losses
// and tokens; three sums per sequence; one fp32 per token and three counters, in whole doubles. With this
// many experts that is more than the fp32 copy of x, which is freed by then.
TEST(RouterOnMeta, LossesAreSummedInScratchOnCuda) {
  constexpr int64_t B = 2, S = 300, E = 512;
  constexpr int64_t kGiven = 4 * (B * S * (E + 1 + 2 * E) + B * E + 2 + E);
  const SimulatedDevice gpu(c10::kCUDA);
  EXPECT_EQ(peak_of(kMetaDevice, {B, S, E}, RouterChoice::token) - kGiven,
            8 * (B * 3 * (2 * E + 2) + 3 * B) + 4 * (B * S + 4));
  EXPECT_EQ(peak_of(kMetaDevice, {0, S, E}, RouterChoice::token), 4 * (E + 2)) << "load and losses";
}

// The peak of a forward and a backward of bf16 tokens.
int64_t both_passes(c10::Device device, int64_t T, int64_t D, int64_t E) {
  install_allocators();
  install_meta_kernels();
  const auto fp32 = at::TensorOptions(device).dtype(at::kFloat);
  const Tensor x = at::zeros({T, D}, fp32.dtype(at::kBFloat16)).requires_grad_(),
               w = at::zeros({E, D}, fp32).requires_grad_(), dweights = at::zeros({T, 2}, fp32);
  const int64_t before = device_memory(device).allocated;
  reset_peaks(device);
  const Tensor weights = route(x, w, std::nullopt, std::nullopt, {.top_k = 2, .sequence = T}).weights_TK;
  torch::autograd::grad({weights}, {x, w}, {dweights});
  return device_memory(device).peak - before;
}

TEST(RouterOnMeta, CountsWhatTheCpuTakes) {
  for (const int64_t E : {4, 16, 40, 64}) {
    for (const int64_t T : {100, 1000, 5000}) {
      EXPECT_EQ(both_passes(kMetaDevice, T, 64, E), both_passes(c10::kCPU, T, 64, E)) << T << " " << E;
    }
  }
}

// The logits with their sum, the choice, the weights and their gradient, and the gradient of x; but neither
// the gradient of the logits nor an fp32 copy of x. Sums by chunk are less than a twentieth of that.
TEST(RouterOnMeta, TakesNoMoreForATokenThanItKeeps) {
  constexpr int64_t D = 256, E = 64, T = 1 << 20;
  const auto grown =
      static_cast<double>(both_passes(kMetaDevice, 2 * T, D, E) - both_passes(kMetaDevice, T, D, E));
  constexpr double kKept = T * (4.0 * (E + 1 + 2 + 2) + 2 * D);
  EXPECT_GE(grown, kKept);
  EXPECT_LE(grown, 1.05 * kKept);
}

// Padding counts in no mean: CUDA's backward counts the other tokens, and holds that number.
TEST(RouterOnMeta, BackwardCountsTokensOfDocumentsOnCudaAlone) {
  install_allocators();
  install_meta_kernels();
  const auto fp32 = at::TensorOptions(kMetaDevice).dtype(at::kFloat);
  const Tensor x = at::empty({64, kWidth}, fp32).requires_grad_(),
               w = at::empty({4, kWidth}, fp32).requires_grad_(),
               documents = at::empty({64}, fp32.dtype(at::kInt)), dweights = at::empty({64, 2}, fp32);
  const auto backward_peak = [&](const Tensor& starts) {
    const Tensor weights = route(x, w, std::nullopt, std::nullopt,
                                 {.top_k = 2, .sequence = 64, .capacity = 0, .documents = starts})
                               .weights_TK;
    const int64_t before = device_memory(kMetaDevice).allocated;
    reset_peaks(kMetaDevice);
    torch::autograd::grad({weights}, {x, w}, {dweights});
    return device_memory(kMetaDevice).peak - before;
  };
  EXPECT_EQ(backward_peak(documents), backward_peak({}));
  const SimulatedDevice gpu(c10::kCUDA);
  EXPECT_EQ(backward_peak(documents), backward_peak({}) + 8);
}

TEST(RouterOnMeta, RefusesMoreExpertsThanCudaHas) {
  const Case c{1, 4, 1025};
  peak_of(kMetaDevice, c, RouterChoice::token);
  const SimulatedDevice gpu(c10::kCUDA);
  EXPECT_THROW(peak_of(kMetaDevice, c, RouterChoice::token), c10::Error);
}

// Forwards with scratch that is larger than the fp32 copy of x and so in the peak; LibTorch rounds each of a
// dozen tensors up to 512 bytes. The choice is given, to save time on an emulated GPU.
TEST(RouterOnMeta, TokenChoiceIsPredictedOnAGpu) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  const c10::Device gpu(c10::kCUDA, 0);
  for (const Case& c : {Case{2, 300, 256}, {8, 32, 128}, {16, 1, 1024}}) {
    peak_of(gpu, c, RouterChoice::token, true);  // makes the workspaces that LibTorch makes once
    const int64_t measured = peak_of(gpu, c, RouterChoice::token, true);
    const SimulatedDevice stands(c10::kCUDA);
    const int64_t predicted = peak_of(kMetaDevice, c, RouterChoice::token, true);
    EXPECT_GE(measured, predicted) << c.S << " " << c.E;
    EXPECT_LE(measured, predicted + 12 * 512) << c.S << " " << c.E;
  }
}

TEST(RouterOnMeta, ExpertChoiceIsPredictedOnAGpu) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  const c10::Device gpu(c10::kCUDA, 0);
  for (const Case& c : {Case{4, 4096, 64}, {4, 8192, 16}, {4, 8192, 64}}) {
    peak_of(gpu, c, RouterChoice::expert);  // makes the workspaces that LibTorch makes once
    const auto measured = static_cast<double>(peak_of(gpu, c, RouterChoice::expert));
    const SimulatedDevice stands(c10::kCUDA);
    const auto predicted = static_cast<double>(peak_of(kMetaDevice, c, RouterChoice::expert));
    EXPECT_NEAR(predicted / measured, 1, 0.03) << c.S << " " << c.E;
  }
}

}  // namespace
}  // namespace moelab
