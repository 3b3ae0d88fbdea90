#pragma once
#include <string>

namespace moelab {

// The commit that last changed what the program is built from, 12 digits; "unknown" outside of a git
// checkout. Texts, results, scripts and tests are not built, but for the cases that bench_kernels times.
std::string build_commit();

// Whether tracked files of these differed from it when the program was built.
bool build_modified();

// The two as one text: "commit 0123456789ab", or "commit 0123456789ab, modified".
inline std::string build_name() {
  return "commit " + build_commit() + (build_modified() ? ", modified" : "");
}

}  // namespace moelab
