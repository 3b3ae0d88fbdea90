#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/temporary_folder.h"
#include "train/program/qualify/kernel_record.h"

namespace moelab {
namespace {

namespace fs = std::filesystem;

KernelKey some_key() { return {"NVIDIA L4", 89, "580.65.06 CUDA 13000", "commit 0", {64, 32, 4, 2, 48}}; }

KernelRecord some_record() {
  return {{{"swiglu", "plain", "", 2}, {"swiglu", "packed", "crashed: signal 11", 0}}, "2026-11-24"};
}

fs::path only_file(const TemporaryFolder& folder) {
  std::vector<fs::path> files;
  for (const auto& file : fs::directory_iterator(folder.path())) files.push_back(file.path());
  EXPECT_EQ(files.size(), 1u);
  return files.at(0);
}

TEST(KernelRecord, IsReadAsItWasWritten) {
  const TemporaryFolder folder;
  EXPECT_FALSE(read_kernel_record(folder.path(), some_key()));
  write_kernel_record(folder.path(), some_key(), some_record());
  const auto got = read_kernel_record(folder.path(), some_key());
  ASSERT_TRUE(got);
  EXPECT_EQ(got->date, "2026-11-24");
  ASSERT_EQ(got->tried.size(), 2u);
  EXPECT_EQ(got->tried[0].op, "swiglu");
  EXPECT_EQ(got->tried[0].variant, "plain");
  EXPECT_EQ(got->tried[0].milliseconds, 2);
  EXPECT_EQ(got->tried[1].failure, "crashed: signal 11");
}

TEST(KernelRecord, HoldsForItsKeyAlone) {
  const TemporaryFolder folder;
  write_kernel_record(folder.path(), some_key(), some_record());
  std::vector<KernelKey> others(6, some_key());
  others[0].gpu = "NVIDIA H100";
  others[1].capability = 90;
  others[2].driver = "580.82.07 CUDA 13000";
  others[3].build = "commit 0, modified";
  others[4].sizes.expert_width = 96;
  others[5].sizes.type = at::kBFloat16;
  for (const KernelKey& other : others) {
    EXPECT_FALSE(read_kernel_record(folder.path(), other));
    const std::string text = (std::ostringstream() << std::ifstream(only_file(folder)).rdbuf()).str();
    const TemporaryFolder elsewhere;  // even if the names of the files were the same
    write_kernel_record(elsewhere.path(), other, some_record());
    std::ofstream(only_file(elsewhere)) << text;
    EXPECT_FALSE(read_kernel_record(elsewhere.path(), other));
  }
}

TEST(KernelRecord, ADamagedOneIsNone) {
  const TemporaryFolder folder;
  write_kernel_record(folder.path(), some_key(), some_record());
  const fs::path file = only_file(folder);
  const std::string whole = (std::ostringstream() << std::ifstream(file).rdbuf()).str();
  for (const std::string& text : {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"),
                                  std::string(R"({"schema": 1})"), std::string(R"({"schema": "1"})")}) {
    std::ofstream(file) << text;
    EXPECT_FALSE(read_kernel_record(folder.path(), some_key())) << text;
    EXPECT_EQ(date_of_qualification(folder.path(), some_key()), "");
  }
  write_kernel_record(folder.path(), some_key(), some_record());
  EXPECT_TRUE(read_kernel_record(folder.path(), some_key()));
}

TEST(KernelRecord, AFolderThatCannotBeWrittenIsNoError) {
  write_kernel_record("/proc/nowhere", some_key(), some_record());
  write_kernel_record({}, some_key(), some_record());
  EXPECT_FALSE(read_kernel_record({}, some_key()));
}

TEST(KernelRecord, ADayIsThatOfOneThatPassedOnThisGpu) {
  const TemporaryFolder folder;
  KernelKey wide = some_key();
  wide.sizes.width = 4096;
  KernelRecord failed = some_record();
  failed.date = "2026-12-01";
  failed.tried[0].failure = "wrong";
  EXPECT_TRUE(some_record().passed()) << "that a fast variant crashes is no defect of the plain one";
  EXPECT_FALSE(failed.passed());
  EXPECT_FALSE(KernelRecord{}.passed());
  write_kernel_record(folder.path(), wide, failed);
  EXPECT_EQ(date_of_qualification(folder.path(), some_key()), "");
  write_kernel_record(folder.path(), some_key(), some_record());
  EXPECT_EQ(date_of_qualification(folder.path(), wide), "2026-11-24") << "of any size";
  KernelKey other = some_key();
  other.driver = "another";
  EXPECT_EQ(date_of_qualification(folder.path(), other), "");
}

}  // namespace
}  // namespace moelab
