#pragma once
#include <string>

namespace moelab {

// The commit that the program was built from, 12 digits; "unknown" outside of a git checkout.
std::string build_commit();

// Whether tracked files differed from that commit when the program was built; files below results/ don't
// count.
bool build_modified();

// The two as one text: "commit 0123456789ab", or "commit 0123456789ab, modified".
inline std::string build_name() {
  return "commit " + build_commit() + (build_modified() ? ", modified" : "");
}

}  // namespace moelab
