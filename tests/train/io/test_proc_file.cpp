#include <gtest/gtest.h>

#include <fstream>

#include "tests/temporary_folder.h"
#include "train/io/proc_file.h"

namespace moelab {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

TEST(ProcFile, TheClassIsOfTheBestInstructions) {
  const TemporaryFolder folder;
  const auto class_of = [&](const std::string& flags) {
    write(folder / "cpuinfo", "processor\t: 0\nflags\t\t: fpu " + flags + " sse\nprocessor\t: 1\n");
    return cpu_class(folder / "cpuinfo");
  };
  EXPECT_EQ(class_of("avx2 avx512f avx512bw avx512_bf16 amx_bf16 amx_tile"), "AMX");
  EXPECT_EQ(class_of("avx2 avx512f avx512bw avx512_bf16"), "AVX512-BF16");
  EXPECT_EQ(class_of("avx2 avx512f avx512bw avx512_vnni"), "AVX-512");
  EXPECT_EQ(class_of("avx avx2"), "AVX2");
  EXPECT_EQ(class_of("avx"), "");
  EXPECT_EQ(cpu_class(folder / "none"), "");
}

// Files as the driver writes them.
TEST(ProcFile, TheFirstGpuIsTheOneOfTheLowestBusAddress) {
  const TemporaryFolder gpus;
  EXPECT_EQ(first_gpu_name(gpus / "none"), "");
  EXPECT_EQ(first_gpu_name(gpus.path()), "");
  write(gpus / "0000:0a:00.0/information", "Model: \t\t NVIDIA L4\nIRQ:   \t\t 12\n");
  write(gpus / "0000:03:00.0/information", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 11\n");
  write(gpus / "0000:01:00.0/information", "IRQ:   \t\t 10\n");
  EXPECT_EQ(first_gpu_name(gpus.path()), "NVIDIA H100 80GB HBM3");
}

// First lines as drivers write them, the second one of the open kernel module.
TEST(ProcFile, TheDriverIsTheNumberInItsVersion) {
  const TemporaryFolder folder;
  const auto driver = [&](const std::string& text) {
    write(folder / "version", text);
    return nvidia_driver(folder / "version");
  };
  EXPECT_EQ(
      driver("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
             "GCC version:  gcc version 12.3.0\n"),
      "535.104.05");
  EXPECT_EQ(driver("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"),
            "580.65.06");
  EXPECT_EQ(driver("NVRM version: none\n"), "");
  EXPECT_EQ(nvidia_driver(folder / "none"), "");
}

}  // namespace
}  // namespace moelab
