#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "kernels/memory/ledger.h"
#include "kernels/update/squared_norm.h"
#include "tests/temporary_folder.h"
#include "tests/train/settings/overrides.h"
#include "tests/train/step/compared_runs.h"
#include "tests/train/step/random_run.h"
#include "tests/user_error.h"
#include "train/placement/state_gradients.h"
#include "train/predict/dry_run.h"

// Optimizer state and gradients on the host or in a file: results are bitwise the same as on the device, and
// the bytes are where the settings place them.
namespace moelab {
namespace {

using test::carry_over, test::expect_equal, test::text_of, test::Overrides, test::operator+;

Settings settings_with(const Overrides& overrides) {
  const Overrides own = {"model.layers=3", "placement.nvme_block=16KiB"};
  return test::pico_settings(test::kSmallRun + own + overrides);
}

// Every rule, with masters, without, and in fp32; every way that gradients are produced.
std::vector<Overrides> variants() {
  std::vector<Overrides> all;
  for (const std::string_view name : enum_names(OptimizerName{})) {
    const Overrides rule = {"optim.name=" + std::string(name)};
    all.push_back(rule + Overrides{"precision.compute=bf16"});
    if (name == "adamw_compact") continue;
    all.push_back(rule);
    all.push_back(rule + Overrides{"precision.compute=bf16", "precision.master=none"});
  }
  all.push_back({"optim.state=bf16", "precision.compute=bf16"});
  all.push_back({"precision.compute=bf16", "train.accumulation=2", "train.micro_batch=2"});
  all.push_back({"precision.compute=bf16", "train.accumulation=2", "precision.gradient_sums=bf16"});
  all.push_back({"train.accumulation=2", "train.micro_batch=2", "optim.clip=0.01"});
  all.push_back({"precision.compute=fp16", "activations.checkpoint=full"});
  all.push_back({"optim.in_backward=true", "precision.compute=bf16"});
  all.push_back({"optim.in_backward=true", "optim.name=adam_mini", "activations.checkpoint=full"});
  return all;
}

std::vector<Overrides> homes(const Overrides& variant, const TemporaryFolder& drive) {
  const std::string path = "placement.nvme_path=" + drive.string();
  std::vector<Overrides> all = {{"placement.optimizer=host"}, {"placement.optimizer=nvme", path}};
  const bool in_backward =
      std::find(variant.begin(), variant.end(), "optim.in_backward=true") != variant.end();
  if (in_backward) return all;
  all.push_back({"placement.gradients=host"});
  all.push_back({"placement.gradients=nvme", path});
  all.push_back({"placement.gradients=nvme", "placement.optimizer=nvme", path});
  all.push_back({"placement.gradients=host", "placement.optimizer=nvme", path});
  return all;
}

TEST(StateHomes, EveryRuleIsBitwiseTheSameInEveryHome) {
  install_allocators();
  const TemporaryFolder drive;
  for (const Overrides& variant : variants()) {
    const Settings plain = settings_with(variant);
    Trainer kept(plain, at::kCPU, test::random_batches(plain));
    std::vector<StepReport> reports;
    for (int64_t step = 0; step < 4; ++step) reports.push_back(kept.step(step));
    EXPECT_NE(reports.back().loss, reports.front().loss);
    for (const Overrides& home : homes(variant, drive)) {
      const std::string where = text_of(variant + home);
      const Settings s = settings_with(variant + home);
      Trainer away(s, at::kCPU, test::random_batches(s));
      for (int64_t step = 0; step < 4; ++step) {
        const StepReport got = away.step(step);
        EXPECT_EQ(got.loss, reports[step].loss) << where << step;
        EXPECT_EQ(got.gradient_norm, reports[step].gradient_norm) << where << step;
      }
      expect_equal(away.weights(), kept.weights(), where);
      expect_equal(away.optimizer_state(), kept.optimizer_state(), where);
      EXPECT_EQ(away.state_bytes().optimizer, kept.state_bytes().optimizer) << where;
      EXPECT_EQ(away.state_bytes().parameters, kept.state_bytes().parameters) << where;
    }
  }
  EXPECT_TRUE(drive.empty());
}

TEST(StateHomes, EachGoesOnBitwiseFromWhatAnotherSaved) {
  const TemporaryFolder drive;
  for (const Overrides& variant : variants()) {
    const Settings plain = settings_with(variant);
    Trainer straight(plain, at::kCPU, test::random_batches(plain));
    for (int64_t step = 0; step < 2; ++step) straight.step(step);
    const std::vector<Overrides> all = homes(variant, drive);
    const Settings s = settings_with(variant + all.at(1));
    Trainer second(s, at::kCPU, test::random_batches(s)), third(plain, at::kCPU, test::random_batches(plain));
    second.step(5);  // what it holds must not matter
    carry_over(straight, second);
    straight.step(2);
    second.step(2);
    carry_over(second, third);
    EXPECT_EQ(straight.step(3).loss, third.step(3).loss) << text_of(variant);
    expect_equal(third.weights(), straight.weights(), text_of(variant));
    expect_equal(third.optimizer_state(), straight.optimizer_state(), text_of(variant));
  }
}

TEST(StateHomes, TheDryRunPredictsEachLedger) {
  install_allocators();
  const TemporaryFolder drive;
  for (const Overrides& variant : variants()) {
    for (const Overrides& home : homes(variant, drive)) {
      const std::string where = text_of(variant + home);
      Settings s = settings_with(variant + home);
      s.eval.batches = 0;
      const DryRun predicted = dry_run(s);
      const test::MeasuredRun got = test::measured_run(s);
      EXPECT_NEAR(static_cast<double>(predicted.peak) / static_cast<double>(got.device), 1, 0.01) << where;
      EXPECT_EQ(predicted.nvme_peak, got.nvme) << where;
      // the batch of the dry run; measured_run() has already made its own
      const auto batch = static_cast<double>(s.train.micro_batch * s.train.sequence * 2 * 8);
      EXPECT_NEAR(static_cast<double>(predicted.host_peak), static_cast<double>(got.host), 2 * batch)
          << where;
    }
  }
}

// A model whose state is most of its memory.
TEST(StateHomes, WhatMovesLeavesTheDevice) {
  install_allocators();
  const TemporaryFolder drive;
  const Overrides model = {"model.vocab=256",        "model.d_model=64",  "model.layers=8",
                           "model.d_expert=128",     "train.sequence=16", "train.micro_batch=1",
                           "precision.compute=bf16", "eval.batches=0"};
  const auto run = [&](const Overrides& more) { return dry_run(settings_with(model + more)); };
  const std::string path = "placement.nvme_path=" + drive.string();
  const DryRun kept = run({});
  const int64_t P = kept.state.gradients / 2;  // bf16, except a few norms
  const auto moved = [&](const DryRun& r) {
    return static_cast<double>(kept.peak - r.peak) / static_cast<double>(P);
  };
  const auto outside = [&](int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(P); };
  const DryRun host = run({"placement.optimizer=host"}), nvme = run({"placement.optimizer=nvme", path}),
               gradients = run({"placement.gradients=host"}),
               all = run({"placement.optimizer=nvme", "placement.gradients=nvme", path});
  EXPECT_NEAR(moved(host), 12, 0.1);  // m, v, masters
  EXPECT_NEAR(outside(host.host_peak), 12, 0.5);
  EXPECT_EQ(host.nvme_peak, 0);
  EXPECT_NEAR(moved(nvme), 12, 0.1);
  EXPECT_NEAR(outside(nvme.nvme_peak), 12, 1.5);  // a whole sector even for the smallest norm
  EXPECT_LT(nvme.host_peak, 6 * (16 << 10) + (64 << 10) + 2048 * 64 * 4);  // tiles, and a master in transit
  EXPECT_GT(moved(gradients), 1.3);                                        // except the largest one
  EXPECT_NEAR(outside(gradients.host_peak), 2, 0.1);
  EXPECT_GT(moved(all), 13.3);
  EXPECT_EQ(cpu_ledger(Home::nvme).allocated(), 0);
}

// Each home counts its own waits, within the time of the step; on the device nothing waits.
TEST(StateHomes, StepsCountTheirWaits) {
  const TemporaryFolder drive;
  const std::string path = "placement.nvme_path=" + drive.string();
  const auto waited = [&](const Overrides& homes) {
    const Settings s = settings_with(homes + Overrides{path, "precision.compute=bf16"});
    Trainer trainer(s, at::kCPU, test::random_batches(s));
    trainer.step(0);
    const auto begin = std::chrono::steady_clock::now();
    const HomeSeconds seconds = trainer.step(1).waited;
    const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.host + seconds.nvme, all.count()) << text_of(homes);
    return seconds;
  };
  const HomeSeconds kept = waited({});
  EXPECT_EQ(kept.host, 0);
  EXPECT_EQ(kept.nvme, 0);
  for (const char* what : {"placement.parameters", "placement.gradients", "activations.storage"}) {
    const HomeSeconds host = waited({std::string(what) + "=host"});
    EXPECT_GT(host.host, 0) << what;
    EXPECT_EQ(host.nvme, 0) << what;
  }
  for (const char* what :
       {"placement.parameters", "placement.gradients", "placement.optimizer", "activations.storage"}) {
    const HomeSeconds nvme = waited({std::string(what) + "=nvme"});
    EXPECT_GT(nvme.nvme, 0) << what;
    EXPECT_EQ(nvme.host, 0) << what;
  }
}

// 2, 2, a bf16 1, and a parameter without a gradient.
TEST(StateHomes, TheNormIsThatOfAllGradientsTogether) {
  const TemporaryFolder drive;
  for (const char* home : {"device", "host", "nvme"}) {
    const Settings s = settings_with({std::string("placement.gradients=") + home,
                                      "placement.nvme_path=" + drive.string(), "precision.compute=bf16"});
    const std::shared_ptr<StateFile> file = make_state_file(s.placement, at::kCPU);
    Optimizer optimizer(s.optim, false, Home::device, at::kCPU, file);
    GradientStore gradients(s.placement, at::kCPU, optimizer, file);
    for (const at::Tensor& value : {at::zeros({2}), at::zeros({1}, at::kBFloat16), at::zeros({1})}) {
      Parameter parameter;
      parameter.value = value.requires_grad_();
      optimizer.add(parameter);
    }
    for (size_t i = 0; i < 2; ++i) {
      at::Tensor value = optimizer.parameters()[i].value;
      value.mutable_grad() = at::full_like(value.detach(), i == 0 ? 2 : 1);
      gradients.take(i);
    }
    EXPECT_DOUBLE_EQ(gradients.sum_of_squares(), 9) << home;
  }
}

// Computed in several parts that end where rows end, in any order.
TEST(StateHomes, ANormIsTheSameInParts) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({700, 384});
  for (const int64_t rows : {1, 7, 699}) {
    ExactSum sum;
    for (int64_t first = (699 / rows) * rows; first >= 0; first -= rows)
      add_squares(x.narrow(0, first, std::min(rows, 700 - first)), 384, sum);
    EXPECT_EQ(sum.value(), squared_norm(x)) << rows;
  }
}

// Gradients of more than one block, over several micro-batches.
TEST(StateHomes, LargeGradientsInAFileClipTheSame) {
  const TemporaryFolder drive;
  for (const char* compute : {"fp32", "bf16"}) {
    const Overrides large = {"model.vocab=3000",     "model.d_model=64",
                             "train.accumulation=2", "train.micro_batch=2",
                             "optim.clip=0.1",       std::string("precision.compute=") + compute};
    const Settings plain = settings_with(large);
    const Settings s = settings_with(large + Overrides{"placement.gradients=nvme", "placement.optimizer=nvme",
                                                       "placement.nvme_path=" + drive.string()});
    Trainer kept(plain, at::kCPU, test::random_batches(plain)), away(s, at::kCPU, test::random_batches(s));
    for (int64_t step = 0; step < 2; ++step)
      EXPECT_EQ(kept.step(step).gradient_norm, away.step(step).gradient_norm);
    expect_equal(away.weights(), kept.weights(), compute);
  }
}

TEST(StateHomes, ContradictionsNameBothSettings) {
  const auto expect_both = [](const Overrides& overrides, const std::string& second) {
    const std::string text = user_error([&] { settings_with(overrides); });
    EXPECT_NE(text.find(overrides.front()), std::string::npos) << text;
    EXPECT_NE(text.find(second), std::string::npos) << text;
  };
  expect_both({"placement.optimizer=nvme"}, "placement.nvme_path");
  expect_both({"placement.gradients=nvme"}, "placement.nvme_path");
  expect_both({"placement.gradients=host", "optim.in_backward=true"}, "optim.in_backward=true");
}

}  // namespace
}  // namespace moelab
