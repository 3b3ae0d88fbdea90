#pragma once
#include <filesystem>
#include <string>

#include "bench/tradeoff/record_store.h"

namespace moelab::tradeoff {

// Where and from what a measurement was taken.
struct Provenance {
  std::string commit;  // the program's own, from its --version; "unknown" if it prints none
  bool dirty = false;  // the program was built from files that differ from that commit
  Json machine;        // {"cpu", "class", "cores", "memory_bytes", "gpu"}; gpu is null without one
};

// `program`: the moelab to measure, which is run once for its version. `scratch`: a file to write to. Needs
// HeldSignals.
Provenance provenance(const std::filesystem::path& program, const std::filesystem::path& scratch);

}  // namespace moelab::tradeoff
