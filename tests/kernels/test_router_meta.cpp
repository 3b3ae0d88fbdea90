#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/memory/cuda_stats.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/aten_meta.h"
#include "kernels/meta/stands_for.h"
#include "kernels/router.h"
#include "tests/cuda_device.h"

// What expert choice holds on meta that stands for CUDA, beside the sizes of what its CUDA side makes, and
// beside a GPU. Axes: T tokens in B sequences of S, E experts.
namespace moelab {
namespace {

using at::Tensor;

constexpr int64_t kWidth = 8, kCapacity = 16;

struct Case {
  int64_t B, S, E;
  int64_t scores() const { return B * S * E; }
};

// The most that the forward holds; with `replayed`, of a choice that was made before.
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
  return peak_of(at::kMeta, c, RouterChoice::expert, replayed) - peak_of(at::kMeta, c, RouterChoice::token);
}

TEST(RouterOnMeta, ExpertChoiceSortsOnCudaAlone) {
  const Case c{2, 4096, 16};
  EXPECT_EQ(sort_bytes(c), 0);
  const MetaStandsFor gpu(c10::kCUDA);
  EXPECT_GT(sort_bytes(c), 0);
  EXPECT_EQ(sort_bytes(c, true), 0) << "the choice is that of the first forward";
}

// Scores in fp32 with values and places of the sort, 16 bytes a score; of more than 4096 tokens a second such
// sort and CUB's scratch. Before, and no longer, there was a copy of x in fp32.
TEST(RouterOnMeta, ExpertChoiceHoldsItsScoresAndTheirSort) {
  const MetaStandsFor gpu(c10::kCUDA);
  struct Row {
    Case c;
    int64_t bytes_a_score;
  };
  for (const Row& row : {Row{{2, 4096, 16}, 16}, {{2, 4097, 16}, 64}, {{8, 4097, 16}, 52}}) {
    const int64_t copy = 4 * row.c.B * row.c.S * kWidth;
    EXPECT_EQ(sort_bytes(row.c), row.bytes_a_score * row.c.scores() - copy) << row.c.S;
  }
}

TEST(RouterOnMeta, ExpertChoiceIsPredictedOnAGpu) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  const c10::Device gpu(c10::kCUDA, 0);
  for (const Case& c : {Case{4, 4096, 64}, {4, 8192, 16}, {4, 8192, 64}}) {
    peak_of(gpu, c, RouterChoice::expert);  // for the workspaces that LibTorch makes once
    const auto measured = static_cast<double>(peak_of(gpu, c, RouterChoice::expert));
    const MetaStandsFor stands(c10::kCUDA);
    const auto predicted = static_cast<double>(peak_of(at::kMeta, c, RouterChoice::expert));
    EXPECT_NEAR(predicted / measured, 1, 0.03) << c.S << " " << c.E;
  }
}

}  // namespace
}  // namespace moelab
