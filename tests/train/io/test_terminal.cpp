#include <gtest/gtest.h>

#include "train/io/terminal.h"

namespace moelab {
namespace {

// The text without the codes of colours, which reach from ESC to m.
std::string plain(std::string text) {
  for (size_t code; (code = text.find('\033')) != text.npos;)
    text.erase(code, text.find('m', code) + 1 - code);
  return text;
}

TEST(Terminal, ColoursTheStepAndTheStatusOfALineAndNothingElse) {
  EXPECT_EQ(coloured("[Step 7] saved step-7"), "\033[1m[Step 7]\033[0m saved step-7");
  EXPECT_EQ(coloured("[Step 7] Memory: 1.0/2.0 GB (50%), Status: normal"),
            "\033[1m[Step 7]\033[0m Memory: 1.0/2.0 GB (50%), Status: \033[32mnormal\033[0m");
  EXPECT_EQ(coloured("[Step 7] Memory: x, Status: warning"),
            "\033[1m[Step 7]\033[0m Memory: x, Status: \033[33mwarning\033[0m");
  EXPECT_EQ(coloured("[Step 7] Memory: x, Status: out of memory - reducing batch size"),
            "\033[1m[Step 7]\033[0m Memory: x, Status: \033[31mout of memory\033[0m - reducing batch size");
  EXPECT_EQ(coloured("warning: slow"), "\033[33mwarning:\033[0m slow");
  for (const std::string line :
       {"", "device cpu, 2 threads", "a [Step 3] in the middle", "[Step 3", "a warning: b"})
    EXPECT_EQ(coloured(line), line);
}

TEST(Terminal, ColoursChangeNoText) {
  for (const std::string line :
       {"[Step 1/9]  11%  loss 5.544", "[Step 7] Memory: x, Status: emergency - a - b"})
    EXPECT_EQ(plain(coloured(line)), line);
}

}  // namespace
}  // namespace moelab
