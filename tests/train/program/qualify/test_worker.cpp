#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>

#include "moe/settings/error.h"
#include "tests/temporary_folder.h"
#include "train/program/qualify/worker.h"

// The process that starts workers, with workers that a shell script plays: variants "plain" and "fast" of one
// operator.
namespace moelab {
namespace {

constexpr double kLong = 60;  // seconds

// The worker tries plain and, unless it is told to skip that, fast, in which `does` happens.
std::string worker(const TemporaryFolder& folder, const std::string& does) {
  const std::string path = folder.write("worker", R"(#!/bin/sh
echo 'a library speaks'
tries() { echo "{\"operator\": \"op\", \"variant\": \"$1\"}"; }
agrees() { echo "{\"operator\": \"op\", \"variant\": \"$1\", \"failure\": \"\", \"milliseconds\": $2}"; }
skipped() { case "$task" in *"\"op/$1\""*) return 0;; esac; return 1; }
[ "$1 $2" = "qualify --worker" ] || exit 9
task="$3"
skipped plain || { tries plain; agrees plain 2; }
skipped fast || { tries fast; )" + does + R"( ; agrees fast 1; }
skipped last || { tries last; agrees last 3; }
)");
  ::chmod(path.c_str(), 0755);
  return path;
}

std::string outcomes(const std::string& does, double patience = kLong) {
  const TemporaryFolder folder;
  std::string text;
  for (const TriedVariant& one : try_in_workers(worker(folder, does), {}, patience))
    text += one.variant +
            (one.failure.empty() ? " " + std::to_string(int(one.milliseconds)) : ": " + one.failure) + "\n";
  return text;
}

TEST(Worker, EachVariantIsTriedOnce) { EXPECT_EQ(outcomes(":"), "plain 2\nfast 1\nlast 3\n"); }

TEST(Worker, AVariantThatEndsItIsOutAndTheOthersAreTriedAllTheSame) {
  EXPECT_EQ(outcomes("kill -SEGV $$"), "plain 2\nfast: crashed: signal 11\nlast 3\n");
  EXPECT_EQ(outcomes("echo 'CUDA error: an illegal address' >&2; echo advice; exit 1"),
            "plain 2\nfast: crashed: exit code 1, CUDA error: an illegal address\nlast 3\n");
  EXPECT_EQ(outcomes("exit 0"), "plain 2\nfast: crashed: exit code 0\nlast 3\n");
}

TEST(Worker, AVariantThatHangsIsOut) {
  EXPECT_EQ(outcomes("exec sleep 600", 5), "plain 2\nfast: hung: no answer for 5 s\nlast 3\n");
}

TEST(Worker, OneThatCannotBeginIsAMistakeOfTheMachines) {
  const TemporaryFolder folder;
  EXPECT_THROW(try_in_workers("/nowhere/moelab", {}, kLong), UserError);
  const std::string path = folder.write("worker", "#!/bin/sh\necho no CUDA\nexit 1\n");
  ::chmod(path.c_str(), 0755);
  try {
    try_in_workers(path, {}, kLong);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("no CUDA"), std::string::npos) << error.what();
  }
}

TEST(Worker, ASignalToStopIsNoDefectOfAVariant) { EXPECT_THROW(outcomes("kill -TERM $$"), UserError); }

}  // namespace
}  // namespace moelab
