#include <gtest/gtest.h>

#include "kernels/memory/block_observer.h"
#include "kernels/memory/ledger.h"
#include "tests/train/step/random_run.h"
#include "train/predict/caching_allocator.h"
#include "train/predict/dry_run.h"
#include "train/settings/load.h"

// Dry runs must account for library kernels' scratch, and pass graphs on to the model of CUDA's allocator.
namespace moelab {
namespace {

Settings narrow(std::vector<std::string> overrides) {
  for (const char* more : {"model.d_model=32", "model.head_dim=32", "model.layers=2", "model.d_expert=64",
                           "model.vocab=128", "train.sequence=128", "train.micro_batch=2", "eval.batches=0"})
    overrides.insert(overrides.begin(), more);
  return load_settings({.config = "moe-pico", .overrides = std::move(overrides)});
}

// With narrow layers, the scratch of attention's kernel and of a sum of two types is visible in the peak.
TEST(Estimates, KnowTheScratchOfLibraryKernels) {
  install_allocators();
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"precision.compute=fp16", "model.kv_heads=1"},
           {"precision.compute=fp16", "model.kv_heads=2", "activations.pieces=[moe]"},
           {"precision.compute=fp32", "model.kv_heads=2", "activations.checkpoint=full"},
           {"precision.compute=bf16", "train.accumulation=2", "model.dispatch=onehot"},
           {"precision.compute=bf16", "train.accumulation=2", "activations.checkpoint=full"}}) {
    const Settings s = narrow(overrides);
    const auto predicted = static_cast<double>(dry_run(s).peak);
    EXPECT_NEAR(predicted / static_cast<double>(test::measured_run(s).device), 1, 2e-3)
        << overrides[0] << " " << overrides[1];
  }
}

// LibTorch's 16-bit product copies an operand whose strides it does not support, which meta does not see.
TEST(Estimates, OnehotExpertsCopyNoOperandInSixteenBits) {
  install_allocators();
  const Settings s =
      load_settings({.config = "moe-pico",
                     .overrides = {"precision.compute=bf16", "model.dispatch=onehot", "model.layers=2",
                                   "model.d_model=128", "model.d_expert=160", "model.experts=4",
                                   "train.sequence=64", "train.micro_batch=4", "eval.batches=0"}});
  const auto predicted = static_cast<double>(dry_run(s).peak);
  EXPECT_NEAR(predicted / static_cast<double>(test::measured_run(s).device), 1, 2e-3);
}

TEST(Estimates, FeedEveryBlockToAnObserver) {
  install_allocators();
  CachingAllocator allocator;
  observe_meta_blocks(&allocator);
  const DryRun run = dry_run(narrow({"precision.compute=bf16"}));
  observe_meta_blocks(nullptr);
  EXPECT_EQ(allocator.active(), 0) << "what was allocated has come back";
  EXPECT_GE(allocator.reserved_peak(), run.peak);
  EXPECT_LT(allocator.reserved_peak(), run.peak + (int64_t{64} << 20));
}

// Between kernels, CUDA keeps other tensors than the CPU.
TEST(Estimates, AreOfTheDeviceThatRuns) {
  install_allocators();
  const auto forward = [](const char* device) {
    Settings s = narrow({std::string("run.device=") + device});
    s.model.d_expert = 256;
    return dry_run(s).phase_peak[static_cast<size_t>(Phase::forward)];
  };
  const int64_t cpu = forward("cpu");
  EXPECT_NE(forward("cuda"), cpu);
  EXPECT_EQ(forward("cpu"), cpu);
}

// A captured step's memory belongs to its graph: an evaluation cannot reuse it.
TEST(Estimates, TellTheObserverOfAGraph) {
  struct Counting : BlockObserver {
    void allocated(const void*, size_t) override {}
    void freed(const void*) override {}
    void graph_captured() override { ++graphs; }
    int graphs = 0;
  };
  for (const auto graphs : {CudaGraphs::none, CudaGraphs::step}) {
    Settings s = narrow({"precision.compute=bf16"});
    s.memory.cuda_graphs = graphs;  // none on the CPU
    Counting observer;
    observe_meta_blocks(&observer);
    dry_run(s);
    observe_meta_blocks(nullptr);
    EXPECT_EQ(observer.graphs, graphs == CudaGraphs::step ? 1 : 0);
  }
}

}  // namespace
}  // namespace moelab
