#include "train/io/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

namespace moelab {
namespace {

constexpr std::string_view kBold = "\033[1m", kRed = "\033[31m", kGreen = "\033[32m", kYellow = "\033[33m",
                           kPlain = "\033[0m", kClear = "\r\033[K";
constexpr std::string_view kStep = "[Step ", kStatus = "Status: ", kWarning = "warning:";

std::string in_colour(std::string_view colour, std::string_view text) {
  return std::string(colour) + std::string(text) + std::string(kPlain);
}

std::string_view colour_of(std::string_view status) {
  return status == "normal" ? kGreen : status == "warning" ? kYellow : kRed;
}

}  // namespace

bool has_colours(int file) {
  const char *refused = std::getenv("NO_COLOR"), *terminal = std::getenv("TERM");
  const bool plain =
      (refused != nullptr && *refused != '\0') || terminal == nullptr || std::string_view(terminal) == "dumb";
  return !plain && ::isatty(file) == 1;
}

std::string coloured(std::string_view line) {
  std::string text;
  if (line.starts_with(kWarning)) {
    text = in_colour(kYellow, kWarning);
    line.remove_prefix(kWarning.size());
  } else if (const size_t end = line.find(']'); line.starts_with(kStep) && end != line.npos) {
    text = in_colour(kBold, line.substr(0, end + 1));
    line.remove_prefix(end + 1);
  }
  const size_t status = line.find(kStatus);
  if (status == line.npos) return text + std::string(line);
  const size_t begin = status + kStatus.size(), end = std::min(line.find(" - ", begin), line.size());
  const std::string_view word = line.substr(begin, end - begin);
  return text + std::string(line.substr(0, begin)) + in_colour(colour_of(word), word) +
         std::string(line.substr(end));
}

void print_line(const std::string& line) {
  std::cout << (has_colours(STDOUT_FILENO) ? coloured(line) : line) << std::endl;
}

WorkLine::WorkLine(double every) : terminal_(::isatty(STDERR_FILENO) == 1), every_(every) {}

WorkLine::~WorkLine() {
  if (terminal_) std::cerr << kClear << std::flush;
}

void WorkLine::show(const std::string& text) const {
  if (terminal_) {
    std::cerr << kClear << text << std::flush;
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (every_ == 0 || std::chrono::duration<double>(now - shown_).count() < every_) return;
  shown_ = now;
  std::cerr << text << std::endl;
}

}  // namespace moelab
