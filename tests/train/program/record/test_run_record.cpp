#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/temporary_folder.h"
#include "train/io/proc_file.h"
#include "train/program/record/run_record.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

// The summary of a run that took no step.
nlohmann::json summary_of(const RunRecord::Ending& ending = {}) {
  const TemporaryFolder folder;
  const Settings settings =
      load_settings({.config = "moe-pico", .overrides = {"run.dir=" + folder.path().string()}});
  RunRecord(settings, at::kCPU, "moelab train", 0).write_summary(ending);
  return nlohmann::json::parse(std::ifstream(folder / "summary.json"));
}

TEST(RunRecord, TheSummaryNamesTheMachinesGpuOrNone) {
  const std::string name = first_gpu_name();
  EXPECT_EQ(summary_of()["machine"]["gpu"], name.empty() ? nlohmann::json(nullptr) : nlohmann::json(name));
}

TEST(RunRecord, TheSummaryTellsTheReasonOfItsStatus) {
  RunRecord::Ending ending;
  EXPECT_EQ(summary_of(ending)["reason"], nullptr);
  ending.status = "error";
  ending.reason = "cannot write \xff";  // a path need not be UTF-8
  const nlohmann::json summary = summary_of(ending);
  EXPECT_EQ(summary["status"], "error");
  EXPECT_EQ(summary["reason"], "cannot write \xef\xbf\xbd");
}

// Two of eight steps are the warm-up.
TEST(RunRecord, TheMedianOfAnEvenNumberOfStepsLiesBetweenTwo) {
  const TemporaryFolder folder;
  const Settings settings =
      load_settings({.config = "moe-pico", .overrides = {"run.dir=" + folder.path().string()}});
  RunRecord record(settings, at::kCPU, "moelab train", 0);
  for (const double milliseconds : {900, 900, 50, 10, 40, 20, 80, 80}) {
    StepTaken step;
    step.milliseconds = milliseconds;
    step.report.tokens = 1000;
    record.add(step);
  }
  record.write_summary({});
  const auto summary = nlohmann::json::parse(std::ifstream(folder / "summary.json"));
  EXPECT_DOUBLE_EQ(summary["step_ms"]["median"], 45);
  EXPECT_DOUBLE_EQ(summary["step_ms"]["p10"], 15);
  EXPECT_DOUBLE_EQ(summary["step_ms"]["p90"], 80);
  EXPECT_DOUBLE_EQ(summary["tokens_per_second"]["median"], 22500);
}

TEST(RunRecord, AHeldOutLossThatIsMadeUpEntersTheLineOfItsStep) {
  const TemporaryFolder folder;
  const Settings settings =
      load_settings({.config = "moe-pico", .overrides = {"run.dir=" + folder.path().string()}});
  folder.write("metrics.jsonl",
               "{\"step\":1,\"held_out_loss\":null}\n{\"step\":2,\"loss\":3.5,\"held_out_loss\":null}\n");
  RunRecord record(settings, at::kCPU, "moelab train", 2);
  record.add_held_out_loss(2, 1.25);
  StepTaken third;
  third.step = 3;
  record.add(third);
  std::ifstream lines(folder / "metrics.jsonl");
  std::string first, second, line;
  std::getline(lines, first) && std::getline(lines, second) && std::getline(lines, line);
  EXPECT_EQ(first, "{\"step\":1,\"held_out_loss\":null}");
  EXPECT_EQ(second, "{\"step\":2,\"loss\":3.5,\"held_out_loss\":1.25}");
  EXPECT_EQ(nlohmann::json::parse(line)["step"], 3);
}

}  // namespace
}  // namespace moelab
