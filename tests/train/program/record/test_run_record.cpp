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

}  // namespace
}  // namespace moelab
