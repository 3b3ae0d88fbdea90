#include <gtest/gtest.h>

#include <csignal>

#include "train/io/child_process.h"
#include "train/io/file_descriptor.h"

namespace moelab {
namespace {

constexpr double kLong = 60;  // seconds

ChildProcess shell(const std::string& script) { return ChildProcess({"/bin/sh", "-c", script}); }

TEST(ChildProcess, BothOutputsAreReadInLines) {
  ChildProcess child = shell("echo one; echo two >&2; printf three; exit 7");
  for (const char* const line : {"one", "two", "three"}) EXPECT_EQ(child.read_line(kLong), line);
  EXPECT_EQ(child.read_line(kLong), std::nullopt);
  EXPECT_FALSE(child.is_silent());
  EXPECT_EQ(child.wait(), 7);
  EXPECT_EQ(child.wait(), 7) << "asked again";
}

TEST(ChildProcess, ItsInputIsEmpty) {
  ChildProcess child = shell("cat; echo end");
  EXPECT_EQ(child.read_line(kLong), "end");
}

TEST(ChildProcess, ASignalThatEndsItIsItsEnd) {
  ChildProcess child = shell("kill -SEGV $$");
  EXPECT_EQ(child.read_line(kLong), std::nullopt);
  EXPECT_EQ(child.wait(), -SIGSEGV);
}

TEST(ChildProcess, OneThatSaysNothingIsSilentAndKilled) {
  ChildProcess child = shell("echo one; exec sleep 600");
  EXPECT_EQ(child.read_line(kLong), "one");
  EXPECT_EQ(child.read_line(0.05), std::nullopt);
  EXPECT_TRUE(child.is_silent());
  EXPECT_EQ(child.end(), -SIGKILL);
}

TEST(ChildProcess, AProgramThatIsNotThereIsAnError) {
  EXPECT_THROW(ChildProcess({"/nowhere/program"}), IoError);
}

}  // namespace
}  // namespace moelab
