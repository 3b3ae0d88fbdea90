#pragma once
#include <string>
#include <vector>

namespace moelab {

// Words as one line that a POSIX shell takes again: those with characters of a meaning of their own in single
// quotes.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace moelab
