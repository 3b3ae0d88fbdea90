#pragma once
#include <string>

namespace moelab {

// The commit that the program was built from, "unknown" outside of a git checkout.
std::string build_commit();

}  // namespace moelab
