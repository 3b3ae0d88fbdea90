#pragma once
#include <filesystem>
#include <string>

#include "bench/tradeoff/record_store.h"

namespace moelab::tradeoff {

// Where and from what a measurement was taken.
struct Provenance {
  std::string
      commit;  // that the program was built from, as its --version says; "unknown" where it does not say
  bool dirty = false;  // the program was built from files that differ from that commit
  Json machine;        // {"cpu", "cores", "memory_bytes", "gpu"}; gpu is null without one
};

// `program`: the moelab that is measured; it is run once. `scratch`: a file to write to. Needs HeldSignals.
Provenance provenance(const std::filesystem::path& program, const std::filesystem::path& scratch);

}  // namespace moelab::tradeoff
