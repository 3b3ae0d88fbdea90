#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/cuda_device.h"
#include "tests/kernels/device/cuda_waits.h"
#include "tests/kernels/reference.h"
#include "tests/temporary_folder.h"
#include "tests/train/settings/overrides.h"
#include "tests/train/step/random_run.h"
#include "train/program/commands/open_run.h"
#include "train/step/trainer.h"

// Whole training steps on a GPU, compared with the CPU's, and with memory moved off the device.
namespace moelab {
namespace {

using test::Overrides, test::operator+;
const c10::Device kGpu(c10::kCUDA, 0);

Settings settings_with(const Overrides& overrides) {
  return test::pico_settings(test::kSmallGpuRun + Overrides{"placement.nvme_block=16KiB"} + overrides);
}

struct Result {
  std::vector<double> losses;
  std::vector<TensorEntry> weights;
};

Result run_on(c10::Device device, const Overrides& overrides) {
  const Settings s = settings_with(overrides);
  Trainer trainer(s, device, test::random_batches(s));
  Result result;
  for (int64_t step = 0; step < 4; ++step) result.losses.push_back(trainer.step(step).loss);
  result.weights = trainer.weights();
  return result;
}

std::vector<Overrides> variants() {
  return {{},
          {"precision.compute=bf16", "activations.checkpoint=full"},
          {"precision.compute=bf16", "model.dispatch=dropless"},
          {"precision.compute=bf16", "activations.pieces=[norms,expert_hidden]", "train.accumulation=2"},
          {"model.experts=0", "attention.kernel=materialised"}};
}

TEST(CudaRun, LossesAreTheCpus) {
  MOELAB_NEEDS_CUDA();
  for (const Overrides& variant : variants()) {
    const Result cpu = run_on(at::kCPU, variant), gpu = run_on(kGpu, variant);
    for (size_t i = 0; i < cpu.losses.size(); ++i) EXPECT_NEAR(gpu.losses[i], cpu.losses[i], 2e-2) << i;
  }
}

// A token attends at most train.sequence tokens back in its document, which bounds a GPU's comparisons.
TEST(CudaRun, PackedRowsAreTheCpus) {
  MOELAB_NEEDS_CUDA();
  for (const Overrides& more : {Overrides{}, {"attention.kernel=sliding_window", "attention.window=8"}}) {
    for (const auto& [type, tolerance] : {std::pair{"fp32", 1e-3}, {"bf16", 2e-2}}) {
      const Overrides run = Overrides{"train.tokens_per_device=300", "train.micro_batch=1",
                                      std::string("precision.compute=") + type} +
                            more;
      const Result cpu = run_on(at::kCPU, run), gpu = run_on(kGpu, run);
      for (size_t i = 0; i < cpu.losses.size(); ++i)
        EXPECT_NEAR(gpu.losses[i], cpu.losses[i], tolerance) << type << i;
    }
  }
}

TEST(CudaRun, EveryOptimizerFollowsTheCpus) {
  MOELAB_NEEDS_CUDA();
  for (const std::string_view name : enum_names(OptimizerName{})) {
    const Overrides run = {"optim.name=" + std::string(name), "precision.compute=bf16"};
    const Result cpu = run_on(at::kCPU, run), gpu = run_on(kGpu, run);
    for (size_t i = 0; i < cpu.losses.size(); ++i) EXPECT_NEAR(gpu.losses[i], cpu.losses[i], 2e-2) << name;
  }
}

// With run.deterministic, storing tensors elsewhere changes no bit.
TEST(CudaRun, WhatLeavesTheDeviceComesBackBitForBit) {
  MOELAB_NEEDS_CUDA();
  const bool before = at::globalContext().deterministicAlgorithms();
  at::globalContext().setDeterministicAlgorithms(true, false);
  const TemporaryFolder drive;
  const std::string path = "placement.nvme_path=" + drive.string();
  for (const Overrides& variant : variants()) {
    const Result kept = run_on(kGpu, variant);
    for (const Overrides& away :
         {Overrides{"activations.storage=host"}, Overrides{"activations.storage=nvme", path},
          Overrides{"placement.parameters=host"}, Overrides{"placement.parameters=nvme", path},
          Overrides{"activations.storage=host", "placement.parameters=host"}}) {
      const Result got = run_on(kGpu, variant + away);
      EXPECT_EQ(got.losses, kept.losses) << away.front();
      for (size_t i = 0; i < kept.weights.size(); ++i) {
        EXPECT_TRUE(test::bitwise_equal(got.weights[i].tensor.cpu(), kept.weights[i].tensor.cpu()))
            << away.front() << kept.weights[i].name;
      }
    }
  }
  at::globalContext().setDeterministicAlgorithms(before, false);
}

// The same for recomputation, compared with keeping all saved tensors.
TEST(CudaRun, WhatIsComputedAgainHasTheSameBits) {
  MOELAB_NEEDS_CUDA();
  const bool before = at::globalContext().deterministicAlgorithms();
  at::globalContext().setDeterministicAlgorithms(true, false);
  for (const char* dispatch : {"model.dispatch=capacity", "model.dispatch=dropless"}) {
    const Overrides run = {"precision.compute=bf16", dispatch};
    const Result kept = run_on(kGpu, run);
    for (const Overrides& again :
         {Overrides{"activations.checkpoint=full"},
          Overrides{"activations.checkpoint=every", "activations.every=2"},
          Overrides{"activations.checkpoint=full", "activations.storage=host"},
          Overrides{"activations.pieces=[norms,attention]"}, Overrides{"activations.pieces=[expert_hidden]"},
          Overrides{"activations.pieces=[moe]"}}) {
      const Result got = run_on(kGpu, run + again);
      EXPECT_EQ(got.losses, kept.losses) << dispatch << again.front();
      for (size_t i = 0; i < kept.weights.size(); ++i) {
        EXPECT_TRUE(test::bitwise_equal(got.weights[i].tensor.cpu(), kept.weights[i].tensor.cpu()))
            << dispatch << again.front() << kept.weights[i].name;
      }
    }
  }
  at::globalContext().setDeterministicAlgorithms(before, false);
}

TEST(CudaRun, AHundredRunsAreBitwiseTheSame) {
  MOELAB_NEEDS_CUDA();
  const bool before = at::globalContext().deterministicAlgorithms();
  at::globalContext().setDeterministicAlgorithms(true, false);
  const Overrides run = {"precision.compute=bf16"};
  const Result first = run_on(kGpu, run);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(run_on(kGpu, run).losses, first.losses) << i;
  at::globalContext().setDeterministicAlgorithms(before, false);
}

TEST(CudaRun, AStepOnTheHostFollowsTheDevices) {
  MOELAB_NEEDS_CUDA();
  const TemporaryFolder drive;
  const std::string path = "placement.nvme_path=" + drive.string();
  for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
    const Result kept = run_on(kGpu, {compute});
    for (const Overrides& away :
         {Overrides{"placement.optimizer=host"}, Overrides{"placement.optimizer=nvme", path},
          Overrides{"placement.gradients=host"}, Overrides{"placement.gradients=nvme", path},
          Overrides{"placement.optimizer=host", "placement.gradients=host", "placement.parameters=host"}}) {
      const Result got = run_on(kGpu, Overrides{compute} + away);
      for (size_t i = 0; i < kept.losses.size(); ++i)
        EXPECT_NEAR(got.losses[i], kept.losses[i], 2e-2) << away.front();
    }
  }
}

// Compressed activations and weights change the loss slightly, as on the CPU.
TEST(CudaRun, PackedStorageTrains) {
  MOELAB_NEEDS_CUDA();
  const Result kept = run_on(kGpu, {"precision.compute=bf16"});
  for (const char* packed : {"activations.storage=int8", "activations.storage=fp8", "precision.store=int8",
                             "precision.store=fp8"}) {
    const Result got = run_on(kGpu, {"precision.compute=bf16", packed});
    for (size_t i = 0; i < kept.losses.size(); ++i) EXPECT_NEAR(got.losses[i], kept.losses[i], 0.1) << packed;
  }
}

// The host reads once a step, however many layers and micro-batches it has: losses, routing and the
// gradients' norm. A captured step has the norm and the losses in two places.
TEST(CudaRun, HostWaitsOnceAStep) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  const auto waits_of = [](const Overrides& overrides) {
    const Settings s = settings_with(
        Overrides{"run.device=cuda", "precision.compute=bf16", "model.dispatch=capacity"} + overrides);
    const BatchSource rows = test::random_batches(s);
    const auto there = [&](int64_t step, int64_t first, int64_t count) {  // to copy tokens is no wait
      return batch_on(kGpu, rows(step, first, count));
    };
    Trainer trainer(s, kGpu, there);
    trainer.step(0);
    const int64_t before = test::cuda_waits();
    trainer.step(1);
    return test::cuda_waits() - before;
  };
  for (const auto& [graphs, waits] : {std::pair{"none", 1}, {"step", 2}}) {
    const std::string setting = std::string("memory.cuda_graphs=") + graphs;
    EXPECT_EQ(waits_of({setting, "model.layers=1"}), waits) << graphs;
    EXPECT_EQ(waits_of({setting, "model.layers=4", "train.accumulation=3"}), waits) << graphs;
  }
}

// precision.tf32 decides how cuBLAS multiplies fp32 matrices.
TEST(CudaRun, Tf32IsAsTheSettingSays) {
  MOELAB_NEEDS_CUDA();
  for (const bool tf32 : {true, false}) {
    open_device(settings_with(
        {"run.device=cuda", "run.threads=1", tf32 ? "precision.tf32=true" : "precision.tf32=false"}));
    EXPECT_EQ(at::globalContext().allowTF32CuBLAS(), tf32);
  }
}

}  // namespace
}  // namespace moelab
