#pragma once
#include <filesystem>
#include <string>

#include "bench/tradeoff/record_store.h"

namespace moelab::tradeoff {

// Where and from what a measurement was taken.
struct Provenance {
  std::string commit;  // of the checkout that the program lies in; "unknown" outside of one
  bool dirty = false;  // tracked files but those below results/ differ from the commit
  Json machine;        // {"cpu", "cores", "memory_bytes", "gpu"}; gpu is null without one
};

// `program`: the moelab that is measured. `scratch`: a file to write to. Needs HeldSignals.
Provenance provenance(const std::filesystem::path& program, const std::filesystem::path& scratch);

}  // namespace moelab::tradeoff
