#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <random>

#include "kernels/memory/ledger.h"
#include "tests/train/step/random_run.h"
#include "train/predict/dry_run.h"
#include "train/settings/load.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

// A random configuration of everything that changes a step's memory.
Settings draw(std::mt19937& random) {
  const auto one_of = [&](auto... choices) {
    const std::array all{choices...};
    return all[random() % all.size()];
  };
  Settings s;
  ModelSettings& m = s.model;
  m.vocab = one_of(128, 257, 1000);
  m.heads = one_of(2, 4);
  m.d_model = m.heads * one_of(16, 32);
  m.kv_heads = one_of(0, 1, 2);
  m.layers = one_of(1, 3, 5);
  m.d_expert = one_of(64, 88, 128);
  m.experts = one_of(0, 4, 4, 8);
  m.experts_per_token = one_of(1, 2);
  m.shared_experts = m.dense() ? 0 : one_of(0, 0, 1);
  m.dispatch = one_of(Dispatch::capacity, Dispatch::dropless, Dispatch::onehot);
  m.router = one_of(RouterKind::softmax, RouterKind::softmax, RouterKind::sigmoid);
  m.tie_embeddings = one_of(true, false);
  m.qk_norm = one_of(QkNorm::none, QkNorm::head, QkNorm::full);
  s.attention.kernel = one_of(AttentionKernel::flash, AttentionKernel::materialised,
                              AttentionKernel::sliding_window, AttentionKernel::block_sparse);
  s.attention.window = one_of(16, 40);
  s.attention.block_size = 16;
  s.attention.local_blocks = 2;
  s.precision.compute = one_of(ComputePrecision::fp32, ComputePrecision::bf16);
  s.activations.checkpoint = one_of(CheckpointMode::none, CheckpointMode::full, CheckpointMode::ratio);
  s.activations.ratio = 0.5;
  s.activations.storage = static_cast<ActivationStorage>(random() % enum_names(ActivationStorage{}).size());
  s.placement.nvme_path = std::filesystem::temp_directory_path();
  s.train.micro_batch = one_of(2, 4, 8);
  s.train.sequence = one_of(64, 96, 128);
  s.train.accumulation = one_of(1, 1, 2);
  s = resolve(s);
  validate(s);
  return s;
}

TEST(DryRun, PredictsTheMeasuredPeakOfDrawnConfigurations) {
  std::mt19937 random(20);
  std::vector<double> errors;
  for (int i = 0; i < 32; ++i) {
    const Settings s = draw(random);
    const auto predicted = static_cast<double>(dry_run(s).peak);
    const auto measured = static_cast<double>(test::measured_run(s).device);
    errors.push_back(predicted / measured - 1);
    EXPECT_LE(std::abs(errors.back()), 0.01)
        << "configuration " << i << ": predicted " << predicted << ", measured " << measured << "; dispatch "
        << static_cast<int>(s.model.dispatch) << ", experts " << s.model.experts << ", attention "
        << static_cast<int>(s.attention.kernel) << ", compute " << static_cast<int>(s.precision.compute)
        << ", checkpoint " << static_cast<int>(s.activations.checkpoint) << ", storage "
        << static_cast<int>(s.activations.storage) << ", vocab " << s.model.vocab << ", accumulation "
        << s.train.accumulation << ", qk_norm " << static_cast<int>(s.model.qk_norm) << ", kv "
        << s.model.kv_heads << ", layers " << s.model.layers << ", shared " << s.model.shared_experts
        << ", tied " << s.model.tie_embeddings;
  }
  for (double& error : errors) error = std::abs(error);
  std::sort(errors.begin(), errors.end());
  std::cout << "error of the predicted peak: median " << 100 * errors[errors.size() / 2] << " %, worst "
            << 100 * errors.back() << " %, over " << errors.size() << " configurations\n";
}

// Bytes outside of the device are predicted completely: only the run puts bytes there.
TEST(DryRun, PredictsWhatStorageHoldsElsewhere) {
  for (const std::string_view name : enum_names(ActivationStorage{})) {
    const std::string storage(name);
    const Settings s = load_settings(
        {.config = "moe-pico",
         .overrides = {"train.sequence=64", "activations.storage=" + storage,
                       "placement.nvme_path=" + std::filesystem::temp_directory_path().string()}});
    const DryRun predicted = dry_run(s);
    const test::MeasuredRun got = test::measured_run(s);
    EXPECT_EQ(predicted.nvme_peak > 1 << 18, storage.ends_with("nvme")) << storage;
    EXPECT_EQ(predicted.nvme_peak, got.nvme) << storage;
    // the batch of the dry run; measured_run() has already made its own
    EXPECT_NEAR(static_cast<double>(predicted.host_peak), static_cast<double>(got.host),
                2.0 * static_cast<double>(s.train.micro_batch * s.train.sequence * 8 * 2))
        << storage;
  }
}

TEST(DryRun, PublishedShapesNeedNoMachineToHoldThem) {
  for (const char* name : {"dense-7b", "dense-70b", "dense-405b", "olmoe-1b-7b", "mixtral-8x7b"}) {
    const Settings s = load_settings({.config = name, .overrides = {"precision.compute=bf16"}});
    const DryRun run = dry_run(s);
    EXPECT_GT(run.peak, run.state.parameters + run.state.optimizer) << name;
    EXPECT_EQ(meta_ledger().allocated(), 0) << name;
  }
}

TEST(DryRun, ARunOfOneStepIsPredictedToo) {
  const auto peak = [](const char* steps) {
    return dry_run(load_settings({.config = "moe-pico", .overrides = {steps}})).peak;
  };
  EXPECT_EQ(peak("train.steps=1"), peak("train.steps=2"));
}

TEST(DryRun, EveryTechniqueLowersThePeak) {
  const Settings textbook = load_settings(
      {.config = "moe-micro", .overrides = {"attention.kernel=materialised", "model.dispatch=onehot"}});
  const int64_t peak = dry_run(textbook).peak;
  const auto peak_with = [&](const std::function<void(Settings&)>& change) {
    Settings s = textbook;
    change(s);
    return dry_run(s).peak;
  };
  EXPECT_LT(peak_with([](Settings& s) { s.attention.kernel = AttentionKernel::flash; }), peak);
  EXPECT_LT(peak_with([](Settings& s) { s.model.dispatch = Dispatch::capacity; }), peak);
  EXPECT_LT(peak_with([](Settings& s) { s.model.dispatch = Dispatch::dropless; }), peak);
  EXPECT_LT(peak_with([](Settings& s) { s.precision.compute = ComputePrecision::bf16; }), peak);
  EXPECT_LT(peak_with([](Settings& s) { s.activations.checkpoint = CheckpointMode::full; }), peak);
  EXPECT_LT(peak_with([](Settings& s) { s.train.micro_batch /= 2; }), peak);
}

// Nothing in a step grows faster than linearly in the sequence: second differences of forward's peak are
// zero.
TEST(DryRun, WindowsAreLinearInTheSequence) {
  for (const char* kernel : {"sliding_window", "block_sparse"}) {
    std::vector<int64_t> peaks;
    for (const int64_t S : {512, 1024, 2048, 4096, 8192}) {
      peaks.push_back(
          dry_run(load_settings(
                      {.config = "moe-pico",
                       .overrides = {std::string("attention.kernel=") + kernel, "train.micro_batch=1",
                                     "activations.checkpoint=full", "train.sequence=" + std::to_string(S)}}))
              .phase_peak[static_cast<size_t>(Phase::forward)]);
    }
    for (size_t i = 2; i < peaks.size(); ++i) {
      const auto slope = static_cast<double>(peaks[i - 1] - peaks[i - 2]);
      EXPECT_NEAR(static_cast<double>(peaks[i] - peaks[i - 1]) / slope, 2, 0.02) << kernel;
    }
  }
}

// By kind: the expert block keeps neither dispatch tensors nor padded copies.
TEST(DryRun, KindsShowTheRoutingTemporariesOfTheTextbook) {
  const auto kinds_of = [](const char* dispatch) {
    return dry_run(load_settings(
                       {.config = "moe-pico", .overrides = {std::string("model.dispatch=") + dispatch}}))
        .by_kind_at_peak;
  };
  const KindBytes onehot = kinds_of("onehot"), capacity = kinds_of("capacity");
  const auto routing = static_cast<size_t>(Kind::routing),
             buffers = static_cast<size_t>(Kind::capacity_buffers);
  EXPECT_GT(onehot[routing], 20 * capacity[routing]);
  // each of four layers keeps its rows; blocked products have slightly more than an expert's
  EXPECT_GT(onehot[buffers], 3 * capacity[buffers]);
}

// On a GPU, tensors on the host return a block ahead: the peak counts all of that block and of the one in
// backward. The last block's do not leave.
TEST(DryRun, CountsTheBlockThatIsFetchedAheadOnAGpu) {
  const auto run = [](const char* device, int64_t layers) {
    return dry_run(load_settings(
        {.config = "moe-pico",
         .overrides = {"activations.storage=host", "eval.batches=0", std::string("run.device=") + device,
                       "model.layers=" + std::to_string(layers)}}));
  };
  const DryRun cpu = run("cpu", 6), gpu = run("cuda", 6);
  const auto backward = [](const DryRun& r) { return r.phase_peak[static_cast<size_t>(Phase::backward)]; };
  const auto block = static_cast<double>(cpu.host_peak - run("cpu", 5).host_peak);
  const auto more = static_cast<double>(backward(gpu) - backward(cpu));
  const auto stays = static_cast<double>(cpu.host_peak - gpu.host_peak);
  EXPECT_GT(stays, 0.9 * block);
  EXPECT_LT(stays, 1.5 * block);
  EXPECT_GT(more, 0.9 * block);
  EXPECT_LT(more, 2.1 * block);
}

}  // namespace
}  // namespace moelab
