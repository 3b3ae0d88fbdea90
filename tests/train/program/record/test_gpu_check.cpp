#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/temporary_folder.h"
#include "train/program/record/build_commit.h"
#include "train/program/record/gpu_check.h"

namespace moelab {
namespace {

using Outcome = GpuCheck::Outcome;
using Json = nlohmann::json;

Json passed() {
  return {{"schema", 1},    {"gpu", "NVIDIA L4"}, {"driver", "580.65.06"}, {"build", build_name()},
          {"passed", true}, {"failed", ""},       {"date", "2026-11-24"}};
}

GpuCheck read(const Json& record, std::chrono::seconds program_is_newer_by = std::chrono::seconds(-5)) {
  const TemporaryFolder folder;
  std::ofstream(folder / "program") << "a program";
  std::ofstream(folder / "gpu_check.json") << record;
  std::filesystem::last_write_time(
      folder / "program", std::filesystem::last_write_time(folder / "gpu_check.json") + program_is_newer_by);
  return read_gpu_check(folder / "gpu_check.json", folder / "program", "NVIDIA L4", "580.65.06");
}

TEST(GpuCheck, CountsForTheGpuTheDriverAndTheBuildThatItNames) {
  EXPECT_EQ(read(passed()).outcome, Outcome::passed);
  EXPECT_EQ(read(passed()).date, "2026-11-24");
  for (const auto& [key, other] :
       {std::pair{"gpu", "NVIDIA H100"}, {"driver", "580.82.07"}, {"build", "commit 0"}, {"date", nullptr}}) {
    Json record = passed();
    record[key] = other == nullptr ? Json(nullptr) : Json(other);
    EXPECT_EQ(read(record).outcome, Outcome::never_ran) << key;
  }
  EXPECT_EQ(read(passed(), std::chrono::seconds(5)).outcome, Outcome::never_ran)
      << "the program was built anew";
}

TEST(GpuCheck, AFailureNamesItsSteps) {
  Json record = passed();
  record["passed"] = false;
  record["failed"] = "operators";
  EXPECT_EQ(read(record).outcome, Outcome::failed);
  EXPECT_EQ(read(record).failed, "operators");
}

TEST(GpuCheck, WhatIsNoRecordIsNone) {
  for (const Json& record : {Json(nullptr), Json::array(), Json{{"schema", 2}}, Json{{"schema", 1}}})
    EXPECT_EQ(read(record).outcome, Outcome::never_ran) << record;
  EXPECT_EQ(read_gpu_check("/nowhere/gpu_check.json", "/proc/self/exe", "", "").outcome, Outcome::never_ran);
}

}  // namespace
}  // namespace moelab
