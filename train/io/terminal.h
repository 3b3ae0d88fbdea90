#pragma once
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

// How far long work is: a line on standard error that each call replaces, and the destructor clears. Nothing
// where that is no terminal.
class WorkLine {
 public:
  WorkLine();
  ~WorkLine();
  WorkLine(const WorkLine&) = delete;
  WorkLine& operator=(const WorkLine&) = delete;
  void show(const std::string& text) const;

 private:
  bool terminal_;
};

}  // namespace moelab
