#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "bench/tradeoff/process.h"
#include "bench/tradeoff/record_store.h"

namespace moelab::tradeoff {

// The result of a run, from how its process ended and from the files that it left.
struct Outcome {
  std::string status;        // ok, oom (exit code 3), error (another one), crash (a signal), timeout, skipped
  std::string message = {};  // its last error, why it was killed or skipped; empty when ok
  Json summary = nullptr;    // its summary.json; null if missing
  Json steps = Json::array();           // [step, tokens, loss, step_ms] of each line of metrics.jsonl
  Json gradient_norms = Json::array();  // one for each of those lines
  Json memory = Json::object();         // at the last step: {phase: {kind: bytes}} at each phase's peak
  // Of several ranks, all but by_rank is rank 0's. Of each: peak_bytes, estimated_peak_bytes, state_bytes.
  Json by_rank = Json::array();
};

// `run`: the run's folder; `log`: its output. Missing or damaged files count as absent; by_rank is empty
// unless all ranks left theirs.
Outcome read_outcome(const Exit& exit, const std::filesystem::path& run, const std::filesystem::path& log,
                     int64_t ranks = 1);

// Why a process failed: the signal or timeout that ended it, or its last error.
std::string message_of(const Exit& exit, const std::filesystem::path& log);

// The text of a file; empty when it can't be read.
std::string file_text(const std::filesystem::path& path);

}  // namespace moelab::tradeoff
