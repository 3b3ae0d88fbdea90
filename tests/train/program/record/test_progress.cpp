#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/temporary_folder.h"
#include "train/program/record/progress.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

std::string start_of(const std::string& compute, c10::Device device) {
  ::testing::internal::CaptureStdout();
  print_start(load_settings({.config = "moe-pico",
                             .overrides = {"precision.compute=" + compute, "model.dispatch=capacity"}}),
              device, {});
  return ::testing::internal::GetCapturedStdout();
}

TEST(Progress, WarnsOfProductsThatAreSlowOnAGpu) {
  const c10::Device gpu(c10::kCUDA, 0);
  const std::string slow = start_of("fp8", gpu);
  EXPECT_NE(slow.find("warning: precision.compute=fp8 on a GPU"), std::string::npos) << slow;
  EXPECT_NE(slow.find("precision.compute=bf16"), std::string::npos) << slow;
  EXPECT_EQ(start_of("bf16", gpu).find("warning"), std::string::npos);
  EXPECT_EQ(start_of("fp8", c10::Device(c10::kCPU)).find("warning"), std::string::npos);
}

// Prints the line of one step of moe-pico: 1,000 tokens in 250 ms.
std::string line_of(bool bytes, double gemm_share, const std::vector<std::string>& changes = {}) {
  const TemporaryFolder folder;
  std::vector<std::string> overrides = {"run.dir=" + folder.path().string(), "train.steps=50",
                                        "run.log_every=5"};
  overrides.insert(overrides.end(), changes.begin(), changes.end());
  const Settings settings = load_settings({.config = "moe-pico", .overrides = overrides});
  RunRecord record(settings, at::kCPU, "moelab train", 0);
  StepTaken done;
  done.step = 5;
  done.tokens = 5000;
  done.milliseconds = 250;
  done.report.loss = 2;
  done.report.tokens = done.report.places = 1000;
  done.memory.peak = int64_t{3} << 20;
  record.add(done);
  const double rate = gemm_share > 0 ? record.median_flops_per_second() / gemm_share : 0;
  ::testing::internal::CaptureStdout();
  Progress(settings, bytes, rate).step(done, record);
  return ::testing::internal::GetCapturedStdout();
}

TEST(Progress, AStepsLineSaysHowFarTheRunIs) {
  // 2 nats are 2 / ln 2 bits; 45 steps of 250 ms are left
  EXPECT_EQ(line_of(true, 0.48),
            "[Step  5/50]  10%  loss 2.000, 2.89 bits a byte  lr 0.00e+00  norm 0.00  load 1.00  dropped "
            "0.0%  4000 "
            "tokens/s, 48% of the GEMM rate  5k tokens  peak 3.0 MiB  0 s elapsed, 11 s left\n");
  EXPECT_EQ(line_of(false, 0),
            "[Step  5/50]  10%  loss 2.000  lr 0.00e+00  norm 0.00  load 1.00  dropped 0.0%  4000 "
            "tokens/s  5k tokens  peak 3.0 MiB  0 s elapsed, 11 s left\n");
  EXPECT_EQ(line_of(true, 0.48, {"run.log_every=7"}), "");
}

// What the end says of steps of 100 ms that waited so.
std::string end_of(const std::vector<HomeSeconds>& steps) {
  const TemporaryFolder folder;
  const Settings settings =
      load_settings({.config = "moe-pico", .overrides = {"run.dir=" + folder.path().string()}});
  RunRecord record(settings, at::kCPU, "moelab train", 0);
  for (size_t i = 0; i < steps.size(); ++i) {
    StepTaken done;
    done.step = static_cast<int64_t>(i) + 1;
    done.milliseconds = 100;
    done.report.tokens = done.report.places = 10;
    done.report.waited = steps[i];
    record.add(done);
  }
  ::testing::internal::CaptureStdout();
  print_end(settings, static_cast<int64_t>(steps.size()), {}, record);
  return ::testing::internal::GetCapturedStdout();
}

TEST(Progress, TheEndSaysHowLongStepsWaited) {
  const std::string end = end_of({{.host = 0.05}, {.nvme = 0.02}, {.host = 0.01}, {}});
  EXPECT_TRUE(
      end.starts_with("waited for what is on the host: 0.06 s, 15.0% of the time of all steps, in 2 steps\n"
                      "waited for what is in a file: 0.02 s, 5.0% of the time of all steps, in 1 step\n"))
      << end;
  EXPECT_TRUE(end_of({{}, {}}).starts_with("2 steps")) << end_of({{}, {}});
}

TEST(Progress, TheEndCountsTheStepsBeforeTheRunWasResumed) {
  const TemporaryFolder folder;
  std::ofstream(folder / "metrics.jsonl") << R"({"step": 1, "tokens": 1000, "step_ms": 60000})"
                                          << "\n"
                                          << R"({"step": 2, "tokens": 2000, "step_ms": 30000})"
                                          << "\n"
                                          << R"({"step": 3, "tokens": 3000, "step_ms": 30000})"
                                          << "\n";
  const Settings settings =
      load_settings({.config = "moe-pico", .overrides = {"run.dir=" + folder.path().string()}});
  RunRecord record(settings, at::kCPU, "moelab train", 2);
  StepTaken done;
  done.step = 3;
  done.tokens = 3500;
  done.milliseconds = 400;
  done.report.tokens = done.report.places = 1500;
  record.add(done);
  ::testing::internal::CaptureStdout();
  print_end(settings, 3, {}, record);
  const std::string end = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(end.starts_with("3 steps, 3.5k tokens in 1 min 30 s; 3750 tokens/s; peak 0 B")) << end;
}

}  // namespace
}  // namespace moelab
