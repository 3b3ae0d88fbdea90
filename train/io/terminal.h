#pragma once
#include <chrono>
#include <string>
#include <string_view>

// What is printed for people: colours and lines that change, on a terminal only.
namespace moelab {

// Whether what is written to `file` may have colours: it is a terminal that knows them, and NO_COLOR is not
// set (https://no-color.org).
bool has_colours(int file);

// A line of a run with the codes of colours: its step, the status of memory, what it warns of.
std::string coloured(std::string_view line);

// Prints a line of a run to standard output, in colours where it takes them.
void print_line(const std::string& line);

// How far long work is: a line on standard error that each call replaces, and the destructor clears. Where
// that is no terminal, a line of its own every `every` seconds; 0: nothing.
class WorkLine {
 public:
  explicit WorkLine(double every = 0);
  ~WorkLine();
  WorkLine(const WorkLine&) = delete;
  WorkLine& operator=(const WorkLine&) = delete;
  void show(const std::string& text) const;

 private:
  bool terminal_;
  double every_;
  mutable std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
};

}  // namespace moelab
