#pragma once
#include <string>
#include <vector>

namespace moelab {

// Joins words into one line that a POSIX shell splits into the same words: words with special characters are
// put in single quotes.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace moelab
