#pragma once
#include <string>

namespace moelab {

// The commit that the program was built from, 12 digits; "unknown" outside of a git checkout.
std::string build_commit();

// Whether tracked files differed from that commit when the program was built; files below results/ don't
// count.
bool build_modified();

}  // namespace moelab
