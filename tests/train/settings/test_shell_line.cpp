#include "train/settings/shell_line.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

namespace moelab {
namespace {

// The words that a shell makes of the line, one per line.
std::string read_by_shell(const std::string& line) {
  const std::string command = "printf '%s\\n' " + line;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      popen(command.c_str(), "r"), pclose);  // NOLINT(bugprone-command-processor): a shell is what is asked
  std::string text;
  for (int c; (c = std::fgetc(pipe.get())) != EOF;) text += static_cast<char>(c);
  return text;
}

TEST(ShellLine, AShellReadsTheSameWords) {
  const std::vector<std::string> words = {
      "moelab",      "train", "run.name=it's a \"test\"", "$HOME",  "a;b|c&d", "",
      "back\\slash", "*.cpp", "(x) <y> #z ~ !",           "a,b=c/d"};
  std::string expected;
  for (const std::string& word : words) expected += word + '\n';
  EXPECT_EQ(read_by_shell(shell_line(words)), expected);
}

TEST(ShellLine, PlainWordsStayPlain) {
  EXPECT_EQ(shell_line({"moelab", "train", "data.path=data/python-stdlib"}),
            "moelab train data.path=data/python-stdlib");
}

}  // namespace
}  // namespace moelab
