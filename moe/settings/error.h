#pragma once
#include <stdexcept>
#include <string>

namespace moelab {

// A user's mistake: a bad setting, a missing or damaged file. The message is one line that says what is
// wrong, where, and what would be right. Programs print it and exit with 2. Broken invariants of our own are
// TORCH_CHECK or assert instead, and exit with 1.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace moelab
